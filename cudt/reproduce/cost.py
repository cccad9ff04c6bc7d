"""What an experiment costs in floating-point operations, without running it.

A forward pass of an example takes 2·m operations, where m = multiplications per position × positions × layers + those
of the readouts. Training takes three forward passes per example and epoch, validation and evaluation take one.
"""

from __future__ import annotations

from cudt.config.recipe import NamedRecipe
from cudt.evaluation.grid import Grid
from cudt.method.objectives.base import objective_class
from cudt.noise.base import training_level
from cudt.reproduce.scale import Completions, Experiment, Listed, Nominal

#: One forward; the backward pass costs two more, for the gradients of the states and of the weights.
_PASSES_PER_UPDATE = 3
#: The size of AlpacaEval, for a scale without a limit.
_INSTRUCTIONS = 805


def training(recipe: NamedRecipe, nominal: Nominal, gammas: list[float] | None) -> float:
    """Operations to train a run and validate it, at each level of `gammas` too."""
    settings = recipe.settings
    epochs = settings.training.epochs
    reads_all = objective_class(settings.objective).reads_all_layers
    updates = epochs * nominal.train * _PASSES_PER_UPDATE * _forward(recipe, nominal, reads_all=reads_all)
    # After every epoch, once at the end, and at each level that the score averages over.
    validations = (epochs + 1 + len(gammas or [])) * nominal.validation
    return updates + validations * _forward(recipe, nominal)


def evaluation(experiment: Experiment, *, answers: bool = True, n_other: int = 0) -> float:
    """Operations of all evaluations of an experiment, and of its completions if `answers`.

    `n_other` is the number of other data sets that it evaluates on, which are taken to be as large as its own.
    """
    sweep, listed = experiment.sweep, experiment.listed
    total = 0.0
    for setting in sweep.settings:
        for arm in sweep.search.arms:
            recipe = sweep.recipe(setting, arm, sweep.first_parameters(arm))
            count = _n_evaluated(experiment, arm)
            total += count * (1 + listed.both_weights + n_other) * _evaluation(recipe, listed, experiment.nominal)
            if answers and listed.completions is not None:
                answering = 1 if listed.completions.runs == "best" else sweep.budget(arm)
                total += answering * _completions(recipe, listed.completions, experiment.nominal)
    return total


def n_evaluations(experiment: Experiment) -> int:
    """The number of runs that an experiment evaluates."""
    sweep = experiment.sweep
    return len(sweep.settings) * sum(_n_evaluated(experiment, arm) for arm in sweep.search.arms)


def _n_evaluated(experiment: Experiment, arm: str) -> int:
    """The number of runs of an arm that are evaluated in each setting."""
    return {"best": 1, "all": experiment.sweep.budget(arm), "none": 0}[experiment.listed.evaluate]


def _evaluation(recipe: NamedRecipe, listed: Listed, nominal: Nominal) -> float:
    settings = recipe.settings
    levels = 0
    for kind in listed.perturbations:
        asked = Grid().levels(kind, settings.evaluation)
        levels += len({*asked, training_level(kind, settings.noise.gamma_train)})
    examples = levels * len(listed.noise_seeds) * nominal.test
    if listed.exits:
        # The same again for exits, and validation data once for their thresholds.
        examples = 2 * examples + nominal.validation
    return examples * _forward(recipe, nominal)


def _completions(recipe: NamedRecipe, asked: Completions, nominal: Nominal) -> float:
    """A forward pass for each prompt, plus one position for each generated token."""
    answers = (asked.limit or _INSTRUCTIONS) * len(asked.gammas)
    longer = 1 + asked.max_new_tokens / nominal.positions
    return answers * longer * _forward(recipe, nominal, reads_all=False)


def _forward(recipe: NamedRecipe, nominal: Nominal, *, reads_all: bool = True) -> float:
    """Operations of a forward pass of one example; with `reads_all` every layer has a readout, else only the last."""
    layers: int = getattr(recipe.settings.model, "layers", None) or nominal.layers or 1
    readouts = layers if reads_all else 1
    return 2 * (nominal.multiplications * nominal.positions * layers + nominal.readout * readouts)
