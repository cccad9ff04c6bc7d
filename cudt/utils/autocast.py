"""Automatic mixed precision, and where it must not be on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

#: The number format of a forward pass; bf16 is mixed with fp32 by autocast.
Precision = Literal["fp32", "bf16"]


def computing_in(
    precision: Precision, device: torch.device
) -> contextlib.AbstractContextManager[Any]:
    """Turn automatic mixed precision on for bf16; for fp32 leave all as it is."""
    import torch

    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Turn automatic mixed precision off, which rounds the factors of products of vectors and
    matrices.

    A backward pass inside `torch.autocast` is rounded, too.
    """
    import torch

    is_on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if is_on else contextlib.nullcontext()
