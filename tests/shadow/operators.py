"""Operations that a device of its own does differently from the CPU: copies between devices, dropout, attention.

Dropout and attention are computed as the CPU computes them, so that results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from tests.shadow.tensor import Shadow, aten, copy_to_cpu, raw_of, replaced, wait
from tests.shadow.watching import record_copy


@replaced("aten::_to_copy")
def _to_copy(tensor: Shadow, *, device: Any = None, non_blocking: bool = False, **options: Any) -> torch.Tensor:
    options.pop("pin_memory", None)
    values = aten._to_copy.default(tensor.raw, **options)
    if device is None or torch.device(device).type != "cpu":
        return Shadow(values)
    if not non_blocking:
        wait("copy to the CPU")
        return values
    target = torch.empty_like(values)
    copy_to_cpu(values, target)
    return target


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The copy behind `torch.tensor(…, device="shadow")`, which does not ask the class of its tensors."""
    return _copy(target, source, non_blocking)


@replaced("aten::copy_")
def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if isinstance(target, Shadow):
        if not isinstance(source, Shadow) and not (non_blocking and source.is_pinned()):
            record_copy(
                "copy to the device" if not non_blocking else "copy to the device from memory that is not pinned"
            )
        target.raw.copy_(raw_of(source))
        return target
    if non_blocking and target.is_pinned():
        copy_to_cpu(raw_of(source), target)
    else:
        wait("copy to the CPU")
        target.copy_(raw_of(source))
    return target


@replaced("aten::native_dropout")
def _dropout(tensor: Shadow, p: float, train: bool | None) -> tuple[Shadow, Shadow]:
    """Dropout as the CPU does it; the mask holds what entries are multiplied by."""
    if not train or p == 0:
        return Shadow(tensor.raw.clone()), Shadow(torch.ones_like(tensor.raw))
    mask = torch.empty_like(tensor.raw).bernoulli_(1 - p).div_(1 - p)
    return Shadow(tensor.raw * mask), Shadow(mask)


@replaced("aten::native_dropout_backward")
def _dropout_backward(gradient: Shadow, mask: Shadow, scale: float) -> Shadow:
    return Shadow(gradient.raw * mask.raw)


def attention(
    query: Shadow,
    key: Shadow,
    value: Shadow,
    attn_mask: Shadow | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention`, by the kernel that the CPU would choose."""
    options = {"scale": scale, "enable_gqa": enable_gqa}
    raw = [raw_of(tensor) for tensor in (query, key, value, attn_mask)]
    chosen = aten._fused_sdp_choice.default(*raw, dropout_p, is_causal, **options)
    mask: Any = attn_mask
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    if chosen == SDPBackend.FLASH_ATTENTION.value:
        made = aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
        )
    else:
        made = aten._scaled_dot_product_attention_math.default(
            query, key, value, mask, dropout_p, is_causal, None, **options
        )
    return made[0]


def computed(op: Any) -> Callable[..., Shadow]:
    """An operation as a kernel of the device."""
    return lambda *args: Shadow(op(*map(raw_of, args)))
