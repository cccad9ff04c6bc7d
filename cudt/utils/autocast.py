"""Automatic mixed precision, and where it must not be on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Turn automatic mixed precision off, which rounds the factors of products of vectors and matrices.

    A backward pass inside `torch.autocast` is rounded, too.
    """
    import torch

    is_on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if is_on else contextlib.nullcontext()
