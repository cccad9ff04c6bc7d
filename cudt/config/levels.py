"""Grids of noise levels: γ for noise on embeddings or pixels, p for noise in texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from cudt.config import plugins
from cudt.utils.errors import UserError
from cudt.utils.text import shown

_MOST = 1000


@dataclass(frozen=True)
class LevelScale:
    """The scale of the levels of a kind of noise."""

    symbol: str
    highest: float
    setting: str
    """The key of a recipe's `evaluation` section that lists levels of this scale."""


#: Noise beyond a million standard deviations is a typing error.
GAMMA = LevelScale("γ", 1e6, "gammas")
PROBABILITY = LevelScale("p", 1.0, "probabilities")


def scale_of(noise: str) -> LevelScale:
    """The scale of a noise's levels; γ for a plug-in that is not installed here."""
    try:
        return GAMMA if plugins.has("noise", noise, "is_added") else PROBABILITY
    except UserError:
        return GAMMA


def training_level(noise: str, gamma_train: float) -> float:
    """The highest level that is in distribution for a model trained at γ_train; 0 for noise in
    texts.
    """
    return gamma_train if scale_of(noise) is GAMMA else 0.0


def distribution(noise: str, level: float, gamma_train: float) -> str:
    """`ID` for a level up to that of training, `OOD` for a higher one."""
    return "ID" if level <= training_level(noise, gamma_train) else "OOD"


def parse_levels(levels: str | Sequence[float], scale: LevelScale = GAMMA) -> list[float]:
    """The levels of a list, of a text like `0,0.5,1`, or of a range like `0:2.1:0.15` (the stop
    included if a step reaches it), sorted and without duplicates.
    """
    found: list[float] = []
    try:
        parts = re.split("[:,]", levels) if isinstance(levels, str) else levels
        # Decimal numbers, so that 0:2.1:0.15 has 1.65 and not 1.6499999999999997.
        numbers = [Decimal(str(part).strip()) for part in parts]
        if isinstance(levels, str) and ":" in levels:
            start, stop, step = numbers
            count = int((stop - start) / step) + 1
            numbers = [start + index * step for index in range(min(count, _MOST + 1))]
        found = sorted({float(number) for number in numbers})
    except (ArithmeticError, ValueError):
        pass
    if not 1 <= len(found) <= _MOST or not all(0 <= level <= scale.highest for level in found):
        raise UserError(
            f"{scale.symbol} grid {shown(levels)}: expected 1 to {_MOST} levels from 0 to "
            f"{scale.highest:g}, as start:stop:step, like 0:2.1:0.15, or as a list, like 0,0.5,1"
        )
    return found
