"""A package that is not part of cudt: a model, a task, a noise, an objective, a dual optimiser and a figure."""
