"""The grid of perturbation levels: γ for noise on embeddings or pixels, p for noise in texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, DecimalException

from cudt.errors import UserError

_MOST = 1000


@dataclass(frozen=True)
class Scale:
    """What a level is called, and how far it may go."""

    symbol: str
    highest: float


GAMMA = Scale("γ", math.inf)
PROBABILITY = Scale("p", 1.0)


def parse_levels(text: str, scale: Scale = GAMMA) -> list[float]:
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


def check_levels(levels: list[float], text: str, scale: Scale = GAMMA) -> list[float]:
    """The levels in order, each once; refuses an empty grid and levels that are out of range or not numbers."""
    grid = f"{scale.symbol} grid '{text}'"
    if not levels:
        raise UserError(f"{grid}: no level in it")
    for level in levels:
        if not (math.isfinite(level) and 0 <= level <= scale.highest):
            most = "" if math.isinf(scale.highest) else f" and at most {scale.highest:g}"
            raise UserError(f"{grid}: levels must be numbers of at least 0{most}, not {level:g}")
    return sorted(set(levels))


def scale_of(kind: str) -> Scale:
    """How the levels of a kind of noise are counted."""
    return PROBABILITY if kind == "discrete" else GAMMA


def training_level(kind: str, gamma_train: float) -> float:
    """The highest level of a kind of noise that is in distribution: no model is trained on damaged texts."""
    return 0.0 if kind == "discrete" else gamma_train
