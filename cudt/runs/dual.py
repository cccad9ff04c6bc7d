"""The dual side of a finished run: its multipliers, and the weights that they give to the layers'
losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cudt.config.schema import Weights
from cudt.method.constraints import effective_weights
from cudt.method.objectives import objective_class
from cudt.runs.run import Run


@dataclass(frozen=True)
class DualAtEnd:
    """λ_l and w_l of each layer at the end of an epoch, by layer."""

    multipliers: dict[int, float]
    weights: dict[int, float]


def dual_at_end(run: Run, which: Weights | None = None) -> DualAtEnd | None:
    """λ and w at the end of the best or the last epoch, from run.json; by default, of the run's own
    epoch.

    None without constraints. history.csv has them too, but only every few updates.
    """
    info, settings = run.finished_info(), run.recipe.settings
    recorded = None if info.multipliers is None else getattr(info.multipliers, which or run.weights)
    if (
        recorded is None
        or info.rates is None
        or not objective_class(settings.objective).is_constrained
    ):
        return None
    multipliers = torch.tensor(recorded, dtype=torch.double)
    weights = effective_weights(
        multipliers, info.rates, settings.descent.form, settings.descent.gradient
    )
    return DualAtEnd(dict(enumerate(recorded, 1)), dict(enumerate(weights.tolist(), 1)))
