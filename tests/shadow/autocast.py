"""Autocast on the pretended device, by CUDA's rules: products in the lower precision, sums and norms in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.shadow.tensor import NAME, aten

#: From "CUDA Ops that can autocast to float16" of torch's documentation; those that models here use.
_LOWER = ("addbmm", "addmm", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "linear", "matmul", "mm")
_ATTENTION = "scaled_dot_product_attention"
#: From "CUDA Ops that autocast to float32".
_FLOAT32 = (
    "cross_entropy_loss",
    "cumsum",
    "exp",
    "layer_norm",
    "log",
    "log_softmax.int",
    "mse_loss",
    "nll_loss",
    "norm.Scalar",
    "prod",
    "reciprocal",
    "rsqrt",
    "softmax.int",
    "softplus",
    "sum",
    "sum.dim_IntList",
)


def _casting(op: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    key = torch._C._dispatch_key_parse("AutocastPrivateUse1")

    def cast(value: Any) -> Any:
        on_device = isinstance(value, torch.Tensor) and value.device.type == NAME and value.is_floating_point()
        return value.to(dtype()) if on_device and value.dtype != torch.double else value

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(cast, (args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return op(*args, **kwargs)

    return run


def register(library: torch.library.Library) -> None:
    """Register the casts in a library of `aten`, which has to be kept."""
    for names, dtype in (
        ((*_LOWER, _ATTENTION), lambda: torch.get_autocast_dtype(NAME)),
        (_FLOAT32, lambda: torch.float32),
    ):
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            library.impl(name, _casting(op, dtype), "AutocastPrivateUse1")
