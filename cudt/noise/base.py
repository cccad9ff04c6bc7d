"""The contract of a kind of noise. A new kind is one file beside this one, which holds `NOISE`.

The file's name is the noise's name in a recipe (`noise.kind`, `evaluation.perturbations`). `NOISE` is either a
`SignalNoise`, added to embeddings or pixels at levels γ, or a `TextNoise`, applied to source texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudt.config import registry
from cudt.config.levels import GAMMA, PROBABILITY, LevelScale

if TYPE_CHECKING:
    import torch


class NoiseKind(ABC):
    """What levels mean under a kind of noise, and which of them training has seen."""

    scale: LevelScale
    is_added: bool
    """Whether it is added to the signal, so that models can be trained on it."""

    @abstractmethod
    def training_level(self, gamma_train: float) -> float:
        """The highest level that is in distribution."""


class SignalNoise(NoiseKind):
    """Noise that is added to the signal, scaled to σ = γ·σ_x; models can be trained on it."""

    scale = GAMMA
    is_added = True

    @abstractmethod
    def standard(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """ε with mean 0 and variance 1."""

    def training_level(self, gamma_train: float) -> float:
        """γ_train."""
        return gamma_train


class TextNoise(NoiseKind):
    """Noise in source texts, before they are cut into tokens. No model is trained on it, so only level 0 is ID."""

    scale = PROBABILITY
    is_added = False

    @abstractmethod
    def corrupt(self, texts: Sequence[str], level: float, seed: int | str, example_id: str) -> tuple[str, ...]:
        """The texts of one example (a premise and its hypothesis, say) at a level; depends on (seed, id) alone."""

    def training_level(self, gamma_train: float) -> float:
        """0: the clean texts."""
        return 0.0


def noise_kind(name: str) -> NoiseKind:
    """The kind of noise of that name."""
    return registry.load("noise", name).NOISE


def signal_noise(name: str) -> SignalNoise:
    """The same for noise that is added to a signal."""
    kind = noise_kind(name)
    if not isinstance(kind, SignalNoise):
        raise ValueError(f"noise '{name}' is applied to texts, not added to a signal")
    return kind


def scale_of(name: str) -> LevelScale:
    """What the levels of a kind of noise are called; γ where its plug-in is not installed here."""
    return GAMMA if registry.problem("noise", name) else noise_kind(name).scale


def training_level(name: str, gamma_train: float) -> float:
    """The highest level of a kind of noise that is in distribution; γ_train where its plug-in is not installed."""
    return gamma_train if registry.problem("noise", name) else noise_kind(name).training_level(gamma_train)


def distribution(name: str, level: float, gamma_train: float) -> str:
    """`ID` for a level that training has seen, `OOD` for a higher one."""
    return "ID" if level <= training_level(name, gamma_train) else "OOD"
