"""Counts what one call does: floating-point operations, and bytes in memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, addmm_flop, sdpa_backward_flop_count, sdpa_flop_count


def _forward(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _backward(gradient: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


def _added(sums: Any, first: Any, second: Any, *others: Any, **options: Any) -> int:
    return addmm_flop(sums, first, second)


#: What PyTorch does not count: its kernels of attention for CPUs, and products that are added in place.
_UNCOUNTED = {
    torch.ops.aten.addmm_: _added,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}


def operations(call: Callable[[], object]) -> int:
    """Products and sums in the matrix products and attentions of a call."""
    with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter:
        call()
    return counter.get_total_flops()


class LiveBytes(TorchDispatchMode):
    """Bytes of tensors that were made while it is entered and are still in memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Views and results of operations in place share the memory of an input, which may be older than this counter.
        given = [tensor.untyped_storage() for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage(), given)
        self.peak = max(self.peak, self.now)
        return made

    def _add(self, storage: Any, given: list[Any]) -> None:
        if storage in self._seen or any(storage is one for one in given):
            return
        self._seen.add(storage)
        self.now += storage.nbytes()
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size: int) -> None:
        self.now -= size
