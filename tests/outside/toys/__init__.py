"""A package that is not part of cudt: a model, a task, a noise, an objective and a figure, one file each."""
