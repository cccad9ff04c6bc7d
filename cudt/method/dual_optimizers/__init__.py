"""How the multipliers ascend, one file an optimiser.

A file holds `build(multipliers, settings)`, which returns a torch optimiser that *maximises*; its name is the
optimiser's name in a recipe (`descent.dual.optimizer`). With `USES_GAINS = True` it takes `proportional_gain` and
`smoothing`, which other optimisers refuse.
"""
