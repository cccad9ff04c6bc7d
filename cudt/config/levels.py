"""Grids of noise levels: γ for noise on embeddings or pixels, p for noise in texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, DecimalException

from cudt.utils.errors import UserError
from cudt.utils.shown import brief, shown

_MOST = 1000
#: Noise beyond a million standard deviations is a typing error.
_HIGHEST = 1e6


@dataclass(frozen=True)
class LevelScale:
    """The scale of the levels of a kind of noise: symbol, range, and the default grid."""

    symbol: str
    highest: float
    axis: str
    """The label of a figure's axis."""
    default: str
    setting: str = ""
    """The key of a recipe's `evaluation` section that lists levels of this scale, if it has one."""


GAMMA = LevelScale("γ", math.inf, r"perturbation level $\gamma$", "0:2.1:0.15", "gammas")
PROBABILITY = LevelScale("p", 1.0, "probability $p$", "0:0.3:0.03", "probabilities")


def parse_levels(text: str, scale: LevelScale = GAMMA) -> list[float]:
    """The levels of a range like `0:2.1:0.15` (the stop included if a step reaches it) or of a list
    like `0,0.5,1`.

    Sorted, without duplicates; computed in decimal, so that 0:2.1:0.15 has 1.65 and not
    1.6499999999999997.
    """
    parts = text.split(":") if ":" in text else text.split(",")
    grid = f"{scale.symbol} grid {shown(text)}"
    if len(parts) > _MOST:
        raise UserError(f"{grid}: {len(parts)} levels, but at most {_MOST} are allowed")
    try:
        numbers = [Decimal(part.strip()) for part in parts]
        if ":" in text:
            numbers = _expand(grid, numbers)
        levels = [float(number) for number in numbers]
    except (DecimalException, ValueError):
        raise UserError(
            f"{grid}: expected start:stop:step, like 0:2.1:0.15, or a list, like 0,0.5,1"
        ) from None
    return check_levels(levels, text, scale)


def _expand(grid: str, ends: list[Decimal]) -> list[Decimal]:
    if len(ends) != 3:
        raise UserError(f"{grid}: expected three parts, start:stop:step, like 0:2.1:0.15")
    start, stop, step = ends
    if not (step.is_finite() and step > 0):
        raise UserError(f"{grid}: the step must be above 0, got {brief(str(step))}")
    if not (start.is_finite() and stop.is_finite() and stop >= start):
        raise UserError(f"{grid}: the stop must be a number and not below the start")
    steps = (stop - start) / step
    if steps >= _MOST:
        raise UserError(
            f"{grid}: {steps + 1:.3g} levels, but at most {_MOST} are allowed; use a larger step"
        )
    count = int(steps) + 1
    return [start + step * i for i in range(count)]


def check_levels(levels: list[float], text: str, scale: LevelScale = GAMMA) -> list[float]:
    """The levels, sorted and without duplicates; refuses an empty grid and levels out of range."""
    grid = f"{scale.symbol} grid {shown(text)}"
    if len(levels) > _MOST:
        raise UserError(f"{grid}: {len(levels)} levels, but at most {_MOST} are allowed")
    if not levels:
        raise UserError(f"{grid}: no levels; give at least one")
    for level in levels:
        if not (math.isfinite(level) and 0 <= level <= scale.highest):
            most = "" if math.isinf(scale.highest) else f" and ≤ {scale.highest:g}"
            raise UserError(f"{grid}: levels must be ≥ 0{most}, got {level:g}")
        if level > _HIGHEST:
            raise UserError(f"{grid}: levels must be ≤ {_HIGHEST:g}, got {level:g}")
    return sorted(set(levels))
