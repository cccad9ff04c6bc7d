"""A task: is the mean of a short sequence of numbers positive?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cudt.config.schema import NamedSection
from cudt.data.loader import Batch
from cudt.tasks.base import Split
from cudt.tasks.text import Classification

SIZES: dict[Split, int] = {"train": 64, "validation": 32, "test": 32}


class Config(NamedSection):
    """The length of the sequences."""

    length: int = 6
    """Numbers in a sequence."""


@dataclass(frozen=True)
class NumberRow:
    """One sequence."""

    id: str
    numbers: torch.Tensor

    @property
    def label(self) -> int:
        """1 where the mean is positive."""
        return int(self.numbers.mean() > 0)


class Signs(Classification):
    """Two classes."""

    classes = (0, 1)

    def __init__(self, config: Config) -> None:
        generator = torch.Generator().manual_seed(0)
        self._splits = {
            split: [
                NumberRow(f"{split}-{i}", torch.randn(config.length, generator=generator))
                for i in range(size)
            ]
            for split, size in SIZES.items()
        }

    def examples(self, split: Split) -> Sequence[NumberRow]:
        """The sequences of a split."""
        return self._splits[split]

    def collate(self, examples: Sequence[NumberRow]) -> Batch:
        """All have one length: nothing is padded."""
        return {
            "ids": [example.id for example in examples],
            "numbers": torch.stack([example.numbers for example in examples]),
            "labels": torch.tensor([example.label for example in examples]),
        }


def build(config: Config, data_root: Path | None, pretrained: str | None) -> Signs:
    """The task."""
    return Signs(config)
