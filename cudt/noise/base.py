"""The contract of a kind of noise.

To add one, write one file in this folder, or a module of your own that recipes name by its import
path. It defines `NOISE`: a `SignalNoise`, which is added to embeddings or pixels at levels γ, or a
`TextNoise`, which changes source texts. The name of the file is the noise's name in a recipe
(`noise.kind`, `evaluation.perturbations`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudt.config import plugins
from cudt.config.levels import GAMMA, PROBABILITY, LevelScale

if TYPE_CHECKING:
    import torch


class NoiseKind(ABC):
    """A kind of noise: the scale of its levels, and which levels are in distribution."""

    scale: LevelScale
    """The symbol, range and default grid of its levels."""
    is_added: bool
    """Whether it is added to the signal, which is the noise that models can be trained with
    (`noise.kind`)."""

    @abstractmethod
    def training_level(self, gamma_train: float) -> float:
        """The highest level that is in distribution for a model trained at γ_train."""


class SignalNoise(NoiseKind):
    """Noise that is added to the signal, scaled to σ = γ·σ_x."""

    scale = GAMMA
    is_added = True
    draws_on_device: bool = False
    """Whether `standard` draws on the device of its generator; otherwise it gets generators of the
    CPU only."""

    @abstractmethod
    def standard(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """ε with mean 0 and variance 1, drawn from `generator` only."""

    def training_level(self, gamma_train: float) -> float:
        """γ_train."""
        return gamma_train


class TextNoise(NoiseKind):
    """Noise in source texts, before tokenisation. No model is trained on it, so only level 0 is in
    distribution.
    """

    scale = PROBABILITY
    is_added = False

    @abstractmethod
    def corrupt(
        self, texts: Sequence[str], level: float, seed: int | str, example_id: str
    ) -> tuple[str, ...]:
        """The texts of one example (such as premise and hypothesis) at a level; draws depend only
        on (seed, id).
        """

    def corrupt_all(
        self, examples: Sequence[tuple[str, Sequence[str]]], level: float, seed: int | str
    ) -> list[tuple[str, ...]]:
        """The texts of many examples, each an id and texts; a kind of noise may have a faster way
        than one by one.
        """
        return [self.corrupt(texts, level, seed, example_id) for example_id, texts in examples]

    def training_level(self, gamma_train: float) -> float:
        """0: the clean texts."""
        return 0.0


def noise_kind(name: str) -> NoiseKind:
    """A kind of noise, by its name in a recipe."""
    return plugins.implementation("noise", name)


def signal_noise(name: str) -> SignalNoise:
    """The same for a noise that is added to the signal; a ValueError for others."""
    kind = noise_kind(name)
    if not isinstance(kind, SignalNoise):
        raise ValueError(
            f"noise '{name}' changes texts; expected one that is added to a signal, such as "
            "'gaussian'"
        )
    return kind


def scale_of(name: str) -> LevelScale:
    """The scale of the levels of a kind of noise; γ if its plug-in is not installed."""
    return GAMMA if plugins.problem("noise", name) else noise_kind(name).scale


def training_level(name: str, gamma_train: float) -> float:
    """The highest level of a kind of noise that is in distribution; γ_train if its plug-in is not
    installed.
    """
    return (
        gamma_train
        if plugins.problem("noise", name)
        else noise_kind(name).training_level(gamma_train)
    )


def distribution(name: str, level: float, gamma_train: float) -> str:
    """`ID` for a level up to that of training, `OOD` for a higher one."""
    return "ID" if level <= training_level(name, gamma_train) else "OOD"
