"""Grids of noise levels: γ for noise on embeddings or pixels, p for noise in texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, DecimalException

from cudt.config import plugins
from cudt.utils.errors import UserError
from cudt.utils.text import shown

_MOST = 1000
#: Noise beyond a million standard deviations is a typing error.
_HIGHEST = 1e6
_HOW = "write start:stop:step, like 0:2.1:0.15, or a list, like 0,0.5,1"


@dataclass(frozen=True)
class LevelScale:
    """The scale of the levels of a kind of noise: symbol, range, and the default grid."""

    symbol: str
    highest: float
    default: str
    setting: str = ""
    """The key of a recipe's `evaluation` section that lists levels of this scale, if it has one."""


GAMMA = LevelScale("γ", math.inf, "0:2.1:0.15", "gammas")
PROBABILITY = LevelScale("p", 1.0, "0:0.3:0.03", "probabilities")


def scale_of(noise: str) -> LevelScale:
    """The scale of a noise's levels, γ or p; γ for a plug-in that is not installed here."""
    is_text = not plugins.problem("noise", noise) and not plugins.has("noise", noise, "is_added")
    return PROBABILITY if is_text else GAMMA


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
    highest = min(scale.highest, _HIGHEST)
    try:
        found = sorted({float(one) for one in _exact(levels)})
        if not found or len(found) > _MOST:
            raise ValueError(f"must have 1 to {_MOST} levels, has {len(found)}")
        if not all(0 <= level <= highest for level in found):
            raise ValueError(f"levels must be ≥ 0 and ≤ {highest:g}")
    except ValueError as error:
        raise UserError(f"{scale.symbol} grid {shown(levels)}: {error}") from None
    return found


def _exact(levels: str | Sequence[float]) -> Sequence[float | Decimal]:
    """Computed in decimal, so that 0:2.1:0.15 has 1.65 and not 1.6499999999999997."""
    if not isinstance(levels, str):
        return levels
    try:
        numbers = [Decimal(part.strip()) for part in levels.replace(":", ",").split(",")]
    except DecimalException:
        raise ValueError(_HOW) from None
    if ":" not in levels:
        return numbers
    if len(numbers) != 3 or not all(number.is_finite() for number in numbers):
        raise ValueError(_HOW)
    start, stop, step = numbers
    if step <= 0 or stop < start:
        raise ValueError("the step must be above 0 and the stop not below the start")
    if (count := (stop - start) / step + 1) >= _MOST + 1:
        raise ValueError(f"must have 1 to {_MOST} levels, has {count:.3g}")
    return [start + step * index for index in range(int(count))]
