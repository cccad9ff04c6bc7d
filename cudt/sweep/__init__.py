"""Many runs of one recipe: fair searches, grids and seeds, on Optuna (`cudt sweep`).

search.py, parse.py      the schema of a search file; parsing one, with all schema errors
checks.py, checks_recipe.py  what the schema cannot express: checks without the recipe, and against it
definition.py            recipe × search file: settings, arms, and the recipe of each cell
storage.py, study.py     where trials are stored; the trials of an arm, in Optuna
keeper.py, queue.py      one process per sweep; which cell runs next
cell.py, messages.py     run one cell in a worker; what sweep and workers send each other
run_sweep.py             run the sweep from beginning to end
results.py, info.py      the tables and recipes in the sweep's folder; its sweep.json
display.py               the sweep on a terminal
cost.py, plan.py         what the sweep would cost, and its plan
slurm.py, slurm_job.py, slurm_options.py  workers as jobs of a Slurm cluster; what a job runs, and asks for
"""
