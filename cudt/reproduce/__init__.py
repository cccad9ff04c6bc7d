"""All of the paper's experiments with one command, cheapest first (`cudt reproduce`).

scale.py                 the schema of recipes/reproduce/*.yaml, and its checks
generated.py             the data and weights that the smoke scale generates
needs.py                 which data and weights an experiment is missing, and how to get them
cost.py                  what an experiment costs, by counting multiplications
stored.py                the reproduction in its storage, for workers that join; folders of runs on several machines
evaluation.py            which runs are evaluated and answer instructions, and how, as trials
queues.py                all trials of an experiment: training, evaluations, completions
progress.py, plan.py     how far experiments are; which are to be run, and what that would cost
experiment_worker.py     what a worker process does
run_experiments.py       start workers, watch the trials of all machines, write the report
forecast.py, outcome.py  how long the rest takes; how the experiments ended
"""
