"""Counts products of matrices."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Products(TorchDispatchMode):
    """`flops` is 2·rows·columns·inner size of all products of matrices so far, of those in place
    too."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_"):
            left, right = args[-2:]
            self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return func(*args, **(kwargs or {}))
