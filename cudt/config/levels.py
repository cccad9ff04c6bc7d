"""The grid of perturbation levels: γ for noise on embeddings or pixels, p for noise in texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, DecimalException

from cudt.utils.errors import UserError

_MOST = 1000


@dataclass(frozen=True)
class LevelScale:
    """What the levels of a kind of noise are called, how far they go, and which are evaluated by default."""

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
    """`0:2.1:0.15` (both ends included where the step reaches the last) or `0,0.5,1`; sorted, without repeats.

    Computed in decimal, so that 0:2.1:0.15 holds 1.65 and not 1.6499999999999997.
    """
    parts = text.split(":") if ":" in text else text.split(",")
    grid = f"{scale.symbol} grid '{text}'"
    try:
        numbers = [Decimal(part.strip()) for part in parts]
        if ":" in text:
            numbers = _expand(grid, numbers)
        levels = [float(number) for number in numbers]
    except (DecimalException, ValueError):
        raise UserError(f"{grid}: write start:stop:step (0:2.1:0.15) or a list (0,0.5,1)") from None
    return check_levels(levels, text, scale)


def _expand(grid: str, ends: list[Decimal]) -> list[Decimal]:
    if len(ends) != 3:
        raise UserError(f"{grid}: a range has three parts, start:stop:step, like 0:2.1:0.15")
    start, stop, step = ends
    if not (step.is_finite() and step > 0):
        raise UserError(f"{grid}: the step must be above 0, not {step}")
    if not (start.is_finite() and stop.is_finite() and stop >= start):
        raise UserError(f"{grid}: the stop must be a number not below the start")
    steps = (stop - start) / step
    if steps >= _MOST:
        raise UserError(f"{grid}: {steps + 1:.3g} levels; at most {_MOST}")
    count = int(steps) + 1
    return [start + step * i for i in range(count)]


def check_levels(levels: list[float], text: str, scale: LevelScale = GAMMA) -> list[float]:
    """The levels in order, each once; refuses an empty grid and levels that are out of range or not numbers."""
    grid = f"{scale.symbol} grid '{text}'"
    if not levels:
        raise UserError(f"{grid}: no level in it")
    for level in levels:
        if not (math.isfinite(level) and 0 <= level <= scale.highest):
            most = "" if math.isinf(scale.highest) else f" and at most {scale.highest:g}"
            raise UserError(f"{grid}: levels must be numbers of at least 0{most}, not {level:g}")
    return sorted(set(levels))
