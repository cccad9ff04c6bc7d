"""The optimisers of the multipliers, one file per optimiser.

To add one, write one file in this folder, or a module of your own that recipes name by its import
path. It defines `build(multipliers, settings)`, which returns a torch optimiser that *maximises*
over the one tensor `multipliers`; `settings` is the recipe's section `descent.dual`. The name of
the file is the optimiser's name in a recipe (`descent.dual.optimizer`). With `USES_GAINS = True` it
accepts the keys `proportional_gain` and `smoothing`, which are errors otherwise.
"""
