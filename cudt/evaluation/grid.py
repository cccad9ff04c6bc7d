"""The grid of an evaluation (kinds of noise, levels and noise seeds), and whatever else it is asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config.schema import Evaluation
from cudt.noise import noise_kind

if TYPE_CHECKING:
    from cudt.utils.device import DeviceName


@dataclass(frozen=True)
class Grid:
    """Levels, kinds of noise and noise seeds; None uses those of the run's recipe."""

    gammas: list[float] | None = None
    probabilities: list[float] | None = None
    perturbations: list[str] | None = None
    noise_seeds: list[int] | None = None

    def kinds(self, settings: Evaluation) -> list[str]:
        return self.perturbations or [*settings.perturbations]

    def seeds(self, settings: Evaluation) -> list[int]:
        return list(dict.fromkeys(self.noise_seeds or settings.noise_seeds))

    def levels(self, kind: str, settings: Evaluation) -> list[float]:
        """The levels of one kind: γ for noise on embeddings or pixels, p for noise in texts."""
        scale = noise_kind(kind).scale
        given = {"gammas": self.gammas, "probabilities": self.probabilities}.get(scale.setting)
        return settings.levels(scale) if given is None else given


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate runs with."""

    grid: Grid
    device: DeviceName
    data_root: Path | None
    n_samples: int = 0
    with_exits: bool = False
