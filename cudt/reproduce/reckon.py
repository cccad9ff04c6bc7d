"""What an experiment costs, by counting: two floating-point operations for each multiplication of a forward pass.

A forward pass of an example is 2·m operations, m being multiplications at each position × positions × layers, and those
of the readouts; an update is three times that, and judging or evaluating an example once.
"""

from __future__ import annotations

from cudt.config.recipe import NamedRecipe
from cudt.evaluation.evaluate import Grid
from cudt.noise.base import training_level
from cudt.reproduce.scale import Experiment, Listed, Nominal

#: Forward, and backward, which is two of them: to the states, and to the weights.
_PASSES_OF_AN_UPDATE = 3
#: Instructions that AlpacaEval has, where a scale does not limit them.
_INSTRUCTIONS = 805


def training(recipe: NamedRecipe, nominal: Nominal, gammas: list[float] | None) -> float:
    """Operations of a run: its updates, and its judgements on validation data."""
    settings = recipe.settings
    epochs = settings.training.epochs
    reads_all = settings.objective != "erm"
    updates = epochs * nominal.train * _PASSES_OF_AN_UPDATE * _forward(recipe, nominal, reads_all=reads_all)
    # After every epoch, once at the end, and at each level that the score averages over.
    judgements = (epochs + 1 + len(gammas or [])) * nominal.validation
    return updates + judgements * _forward(recipe, nominal)


def evaluation(experiment: Experiment, *, answers: bool = True) -> float:
    """Operations of evaluating everything that an experiment evaluates, and of its completions."""
    sweep, listed = experiment.sweep, experiment.listed
    total = 0.0
    for setting in sweep.settings:
        for arm in sweep.search.arms:
            recipe = sweep.recipe(setting, arm, sweep.first(arm))
            count = 1 if listed.evaluate == "best" else sweep.budget(arm)
            total += count * _evaluation(recipe, listed, experiment.nominal)
            if answers:
                total += _completions(recipe, listed, experiment.nominal)
    return total


def n_evaluations(experiment: Experiment) -> int:
    """Runs that an experiment evaluates."""
    sweep = experiment.sweep
    of_arms = (1 if experiment.listed.evaluate == "best" else sweep.budget(arm) for arm in sweep.search.arms)
    return len(sweep.settings) * sum(of_arms)


def _evaluation(recipe: NamedRecipe, listed: Listed, nominal: Nominal) -> float:
    settings = recipe.settings
    levels = 0
    for kind in listed.perturbations:
        asked = Grid().levels(kind, settings.evaluation)
        levels += len({*asked, training_level(kind, settings.noise.gamma_train)})
    return levels * len(listed.noise_seeds) * nominal.test * _forward(recipe, nominal)


def _completions(recipe: NamedRecipe, listed: Listed, nominal: Nominal) -> float:
    """A forward pass for each prompt, and as much again for each token that is written."""
    if listed.completions is None:
        return 0.0
    asked = listed.completions
    answers = (asked.limit or _INSTRUCTIONS) * len(asked.gammas)
    longer = 1 + asked.max_new_tokens / nominal.positions
    return answers * longer * _forward(recipe, nominal, reads_all=False)


def _forward(recipe: NamedRecipe, nominal: Nominal, *, reads_all: bool = True) -> float:
    """Operations of a forward pass of an example; `reads_all` layers, or the last alone."""
    layers: int = getattr(recipe.settings.model, "layers", None) or nominal.layers or 1
    readouts = layers if reads_all else 1
    return 2 * (nominal.multiplications * nominal.positions * layers + nominal.readout * readouts)
