"""Copies to a device that the CPU does not wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device. To an accelerator the copy starts from pinned memory, and the CPU
    goes on at once.
    """
    if values.device.type == "cpu" and can_pin(device):
        values = values.pin_memory()
    # To the CPU it is waited for: values would be read before they arrive.
    return values.to(device, non_blocking=device.type != "cpu")


def can_pin(device: torch.device) -> bool:
    """Whether copies to a device are faster from pinned memory."""
    import torch

    return device.type != "cpu" and torch.accelerator.is_available()
