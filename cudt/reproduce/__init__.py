"""All of the paper's experiments with one command, cheapest first (`cudt reproduce`).

scale.py                 the schema of recipes/reproduce/*.yaml, and its checks
generated.py             the data and weights that the smoke scale generates
needs.py                 which data and weights an experiment is missing, and how to get them
stored.py                the reproduction in its storage, for machines that join
evaluation.py            which runs are evaluated and answer instructions
plan.py                  how far experiments are, their hours, and what is missing
run_experiments.py       train, evaluate and answer what is left, write the report
outcome.py               how the experiments ended
"""
