"""The grid of perturbation levels γ."""

from __future__ import annotations

import math
from decimal import Decimal, DecimalException

from cudt.errors import UserError

_MOST = 1000


def parse_gammas(text: str) -> list[float]:
    """`0:2.1:0.15` (both ends included where the step reaches the last) or `0,0.5,1`; sorted, without repeats.

    Computed in decimal, so that 0:2.1:0.15 holds 1.65 and not 1.6499999999999997.
    """
    parts = text.split(":") if ":" in text else text.split(",")
    try:
        numbers = [Decimal(part.strip()) for part in parts]
        if ":" in text:
            numbers = _expand(text, numbers)
        gammas = [float(number) for number in numbers]
    except (DecimalException, ValueError):
        raise UserError(f"γ grid '{text}': write start:stop:step (0:2.1:0.15) or a list (0,0.5,1)") from None
    return check_gammas(gammas, text)


def _expand(text: str, ends: list[Decimal]) -> list[Decimal]:
    if len(ends) != 3:
        raise UserError(f"γ grid '{text}': a range has three parts, start:stop:step, like 0:2.1:0.15")
    start, stop, step = ends
    if not (step.is_finite() and step > 0):
        raise UserError(f"γ grid '{text}': the step must be above 0, not {step}")
    if not (start.is_finite() and stop.is_finite() and stop >= start):
        raise UserError(f"γ grid '{text}': the stop must be a number not below the start")
    steps = (stop - start) / step
    if steps >= _MOST:
        raise UserError(f"γ grid '{text}': {steps + 1:.3g} levels; at most {_MOST}")
    count = int(steps) + 1
    return [start + step * i for i in range(count)]


def check_gammas(gammas: list[float], text: str) -> list[float]:
    """The levels in order, each once; refuses an empty grid and levels that are negative or not numbers."""
    if not gammas:
        raise UserError(f"γ grid '{text}': no level in it")
    bad = [gamma for gamma in gammas if not (math.isfinite(gamma) and gamma >= 0)]
    if bad:
        raise UserError(f"γ grid '{text}': levels must be numbers of at least 0, not {bad[0]:g}")
    return sorted(set(gammas))
