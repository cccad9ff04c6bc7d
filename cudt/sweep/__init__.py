"""Many runs of one recipe: fair searches, grids and seeds, on Optuna (`cudt sweep`).

search.py                the schema of a search file
checks.py, checks_recipe.py  what the schema cannot express: checks without the recipe, and against it
definition.py            recipe × search file: settings, arms, and the recipe of each cell
storage.py, shared.py    the database of a URL; Optuna's storage for many workers at once
database.py              what SQLite and servers need for that, and what their errors mean
holder.py                the process that has a trial, and whether it is alive
queue.py, study.py       cells that workers share, each one a trial; the cells of an arm, and how they are drawn
source.py, worker.py     where a worker takes trials from, and how it runs them; arm_worker.py is its process
lease.py, recovery.py    one worker at a time uses a run; the trials of dead workers wait again
stored.py                sweeps as their storage knows them, for workers that join
cell.py, messages.py     run one cell in a worker; what it is given and returns
watch.py, observer.py    start workers and watch them; watch all trials in the storage
pruning.py               end runs early that look worse than others, by Optuna's pruners
run_sweep.py             run the sweep from beginning to end
evaluate_runs.py         runs, or shares of a run, as trials of several processes (`cudt eval-ood --workers`)
results.py, info.py      the tables and recipes in the sweep's folder; its sweep.json
display.py               the sweep on a terminal
plan.py                  what the sweep would run
"""
