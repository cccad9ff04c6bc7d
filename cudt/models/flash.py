"""Flash attention in updates (`model.attention: flash_attention_2`).

Its kernels need an accelerator and compute in bf16. Models are checked on the CPU when they are built, and validation
and evaluation compute in the precision of the weights. So a model is built with the attention that transformers
chooses, and flash attention replaces it only while an update runs.
"""

from __future__ import annotations

from typing import Any

import torch

from cudt.utils.autocast import Precision
from cudt.utils.errors import UserError

_NAME = "flash_attention_2"


class FlashAttention:
    """Flash attention for a model of transformers, inside `with`."""

    def __init__(self, backbone: Any) -> None:
        self._backbone = backbone
        self._own: str = backbone.config._attn_implementation

    def check(self, device: torch.device, precision: Precision) -> None:
        """Refuse a device, a precision or a model without flash attention; the model is on its device."""
        if device.type == "cpu":
            raise _error("there is no flash attention on the CPU; set model.attention to auto, or use an accelerator")
        if precision != "bf16" and self._backbone.dtype != torch.bfloat16:
            raise _error("flash attention computes in bf16; set training.precision to bf16, or model.attention to auto")
        with self:
            if self._backbone.config._attn_implementation == self._own:
                raise _error(f"{type(self._backbone).__name__} has no flash attention; set model.attention to auto")

    def __enter__(self) -> None:
        try:
            self._backbone.set_attn_implementation(_NAME)
        except (ImportError, ValueError) as error:
            raise _error(f"{str(error).rstrip('.')}; set model.attention to auto") from None

    def __exit__(self, *exception: object) -> None:
        self._backbone.set_attn_implementation(self._own)


def _error(reason: str) -> UserError:
    return UserError(f"model.attention = '{_NAME}': {reason}")
