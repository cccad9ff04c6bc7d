"""Many runs of one recipe: fair searches, grids and seeds, on Optuna (`cudt sweep`).

search.py, checks.py     what a search file may say, and what can be wrong with it
definition.py            recipe × search file: settings, arms, and the recipe of each cell
storage.py, study.py     where the trials are kept; the trials of an arm, in Optuna
keeper.py, queue.py      one sweep at a time; which cell comes next
cell.py, workers.py      a cell done; the processes that do them
conduct.py               the sweep from beginning to end
results.py, display.py   tables and recipes in the sweep's folder; the same on a terminal
cost.py, plan.py         what it would do, and cost
"""
