"""nuPI (Sohrabi et al., 2024): a proportional term damps the oscillations of λ under gradient
ascent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from cudt.config.schema import Dual

USES_GAINS = True


def build(multipliers: torch.Tensor, settings: Dual) -> torch.optim.Optimizer:
    """nuPI on λ, with Kp = `proportional_gain` (1 by default), Ki = 1 and ν = `smoothing`."""
    from cooper.optim import nuPI, nuPIInitType

    return nuPI(
        [multipliers],
        lr=settings.learning_rate,
        Kp=1.0 if settings.proportional_gain is None else settings.proportional_gain,
        Ki=1.0,
        ema_nu=settings.smoothing or 0.0,
        # Cooper's SGD start drops the first gradient, so its second step would differ from the
        # published one.
        init_type=nuPIInitType.ZEROS,
        maximize=True,
    )
