"""All of the paper's experiments with one command, cheapest first (`cudt reproduce`).

scale.py            the schema of recipes/reproduce/*.yaml, and its checks
generated.py        the data and weights that the smoke scale generates
needs.py            which data and weights an experiment is missing, and how to get them
cost.py             what an experiment costs, by counting multiplications
plan.py             which experiments are to be run, and what that would cost
evaluation.py       which runs of a sweep are evaluated, and evaluating them in several processes
run_experiments.py  run all experiments, then write the report
"""
