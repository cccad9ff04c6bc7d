"""All of the paper's experiments with one command, in order of cost (`cudt reproduce`).

scale.py         what recipes/reproduce/*.yaml may say, and what can be wrong with it
generated.py     data and weights that the smallest scale makes for itself
needs.py         which data and weights an experiment lacks, and how to get them
reckon.py        what an experiment costs, by counting multiplications
plan.py          what is to be done, and what it would cost
evaluation.py    which runs of a sweep are evaluated, and doing that in several processes
conduct.py       the experiments from the first to the last
"""
