"""TRL's supervised fine-tuning with layerwise descent; other trainers of TRL take the mixin in the
same way.
"""

from __future__ import annotations

from cudt.config.schema import Descent, Noise
from cudt.integrations.transformers import DescentMixin
from cudt.utils.errors import UserError

try:
    from trl import SFTTrainer
except ImportError:
    raise UserError("cudt.integrations.trl needs TRL; install it with `pip install trl`") from None

__all__ = ["Descent", "DescentSFTTrainer", "Noise"]


class DescentSFTTrainer(DescentMixin, SFTTrainer):
    """`trl.SFTTrainer` with layerwise descent: `descent=Descent(alpha=…)`.

    TRL's entropy and token accuracy are logged in evaluation only: they need the logits of the last
    layer, which are never all computed here.
    """
