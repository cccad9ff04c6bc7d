"""What the constraints ask for, in words, before the first update, and which settings are doubtful."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cudt.config.recipe import NamedRecipe
from cudt.config.schema import TargetLoss
from cudt.method.constraints import loss_asked_of_last
from cudt.method.descent import LayerwiseDescent
from cudt.runs.info import TargetInfo
from cudt.training import target as targets

#: With weights below this, the layers before the last are trained as good as not at all; the last layer has at least 1.
LEAST_WEIGHT = 0.05


def asked(descent: LayerwiseDescent, target: TargetInfo | None) -> Iterator[str]:
    """What α asks of the last layer, the loss that all constraints together allow; and the target it comes from."""
    reference, n_layers = descent.reference, descent.n_layers
    reached = loss_asked_of_last(reference, descent.rates)
    rates = sorted(set(descent.rates))
    alpha, product = f"α = {rates[0]:.4g}", "(1 − α)^L"
    if len(rates) > 1:
        alpha, product = f"α from {rates[0]:.4g} to {rates[-1]:.4g}", "(1 − α_1)·…·(1 − α_L)"
    yield f"{alpha} asks layer {n_layers} for a loss ≤ {product}·f_0 = {reached:.4g}, f_0 = {reference:.4g}"
    if target is not None:
        yield f"target_loss: auto is {target.loss:.4g}, from {target.source}"


def doubts(descent: LayerwiseDescent, recipe: NamedRecipe, out: Path) -> Iterator[str]:
    """One line for each setting that probably does not do what it is meant to."""
    yield from (too_much := [*_asked_too_much(descent, recipe, out)])
    weights = descent.settled_weights()
    # In the log form equal multipliers cancel for every α and β, so the estimate says nothing about them.
    if weights is None or descent.form == "log" or descent.n_layers == 1:
        return
    if (most := weights[:-1].max().item()) < LEAST_WEIGHT:
        # α that already asks for too much, or for a target, is not to be raised.
        is_raisable = not too_much and not isinstance(recipe.settings.descent.alpha, TargetLoss)
        otherwise = (
            ", or set descent.gradient: proxy" if descent.form == "linear" and descent.gradient == "full" else ""
        )
        yield (
            f"descent.beta = {descent.beta:g} and alpha leave the layers before the last a weight of about {most:.2g} "
            f"in the primal step (the last has at least 1): raise beta{' or alpha' if is_raisable else ''}{otherwise}"
        )


def _asked_too_much(descent: LayerwiseDescent, recipe: NamedRecipe, out: Path) -> Iterator[str]:
    """Whether α asks for a lower loss than ERM reaches."""
    # An automatic target is what ERM reached when it was measured; ERM runs of other seeds do not make it wrong.
    if targets.is_needed(recipe) or (erm := targets.of_finished_runs(recipe, out)) is None:
        return
    asked = loss_asked_of_last(descent.reference, descent.rates)
    # α that was computed from a target leads back to it only up to rounding.
    if asked >= erm.loss * (1 - 1e-6):
        return
    is_target = isinstance(recipe.settings.descent.alpha, TargetLoss)
    key, change = ("descent.alpha.target_loss", "raise") if is_target else ("descent.alpha", "lower")
    yield (
        f"{key} asks the last layer for a loss of {asked:.4g}, and ERM reaches {erm.loss:.4g} on validation data "
        f"({erm.source}): {change} it, or set alpha to {{target_loss: auto}}"
    )
