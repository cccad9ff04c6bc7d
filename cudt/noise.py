"""The noise of examples: σ_x·ε on embeddings or pixels, to be scaled by a level γ, or errors in
source texts with a probability p.

A draw depends only on (seed, example id): not on batch, order, number of processes, model or level.
Levels scale the same draw, so curves are paired across models and levels. Noise of validation and
test data is drawn on the CPU and is the same on every device; training noise is drawn by the device
that trains, each kind of which has its own numbers.

A noise of your own is a module that defines `NOISE`, a `SignalNoise` or a `TextNoise`; recipes name
it by its import path.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cudt.config import plugins
from cudt.utils.errors import UserError

CPU = torch.device("cpu")
#: The characters that discrete noise puts in.
ALPHABET = string.ascii_letters + string.digits + string.punctuation + " "


class SignalNoise(ABC):
    """Noise that is added to embeddings or pixels, at σ = γ·σ_x."""

    is_added = True

    @abstractmethod
    def standard(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """ε with mean 0 and variance 1, drawn from `generator` only, on its device."""


class TextNoise(ABC):
    """Noise in source texts, before tokenisation. No model is trained with it."""

    is_added = False

    @abstractmethod
    def corrupt(
        self, texts: Sequence[str], level: float, seed: int | str, example_id: str
    ) -> tuple[str, ...]:
        """The texts of one example (such as premise and hypothesis) at a level; draws depend only
        on (seed, id).
        """


class Gaussian(SignalNoise):
    """ε ~ N(0, 1) for each entry of the signal."""

    def standard(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, device=generator.device)


class Uniform(SignalNoise):
    """ε ~ U(−√3, √3) for each entry of the signal, which has variance 1, too."""

    def standard(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        drawn = torch.rand(tuple(shape), generator=generator, device=generator.device)
        return (2 * drawn - 1) * math.sqrt(3)


class Discrete(TextNoise):
    """Errors as in scanned, typed or transcribed texts: every character is replaced by a random one
    with probability p, and every word is removed with probability p.

    A word includes the white space after it; white space at the start of a text is a word of its
    own. p decides which draws take effect: a change at one level is the same at every higher one.
    """

    def corrupt(
        self, texts: Sequence[str], level: float, seed: int | str, example_id: str
    ) -> tuple[str, ...]:
        generator = np.random.default_rng(example_seed(seed, example_id))
        return tuple(self._corrupted(text, level, generator) for text in texts)

    def _corrupted(self, text: str, level: float, generator: np.random.Generator) -> str:
        words = re.findall(r"\s+|\S+\s*", text)
        kept = generator.random(len(words)) >= level
        replaced = generator.random(len(text)) < level
        substitutes = generator.integers(len(ALPHABET), size=len(text))
        characters = list(text)
        for position in np.flatnonzero(replaced):
            characters[position] = ALPHABET[substitutes[position]]
        ends = [0, *itertools.accumulate(map(len, words))]
        spans = itertools.compress(itertools.pairwise(ends), kept)
        return "".join("".join(characters[start:end]) for start, end in spans)


GAUSSIAN, UNIFORM, DISCRETE = Gaussian(), Uniform(), Discrete()


def noise_kind(name: str) -> Any:
    """A kind of noise, a `SignalNoise` or a `TextNoise`, by its name in a recipe."""
    return plugins.implementation("noise", name)


# ---------------------------------------------------------------- draws


@dataclass(frozen=True)
class NoiseSource:
    """The noise of one kind and seed: σ_x·ε(seed, id); γ times this is the noise at level γ."""

    kind: str
    sigma_x: float
    seed: int | str

    def draw(
        self,
        ids: Sequence[str],
        lengths: Sequence[int],
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> Tensor:
        """σ_x·ε for a batch whose signal has a shape, (examples, positions, …); drawn on a device.
        Positions behind the length of an example are padding, which gets 0.
        """
        kind, drawn = noise_kind(self.kind), torch.zeros(*shape, dtype=dtype, device=device)
        for row, example_id, length in zip(drawn, ids, lengths, strict=True):
            generator = example_generator(self.seed, example_id, device)
            row[:length] = kind.standard((length, *shape[2:]), generator)
        return usable(self.sigma_x) * drawn


def usable(sigma_x: float) -> float:
    """σ_x, if noise of σ = γ·σ_x is any noise."""
    if math.isfinite(sigma_x) and sigma_x > 0:
        return sigma_x
    raise UserError(
        f"σ_x = {sigma_x:g}: the clean signal (pixels, or embeddings of tokens) is constant or not "
        "finite; check the data and the pretrained weights, or use γ = 0 or discrete noise"
    )


def example_generator(
    seed: int | str, example_id: str, device: torch.device = CPU
) -> torch.Generator:
    """The generator of one example."""
    return torch.Generator(device).manual_seed(example_seed(seed, example_id))


def example_seed(seed: int | str, example_id: str) -> int:
    """A 64-bit hash of the seed and the example's id, the same in every batch and order."""
    digest = hashlib.blake2b(f"{seed}\x00{example_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
