"""A pretended accelerator in Python alone: device "shadow", which computes on the CPU and is strict
as CUDA is.

A tensor on it refuses to be mixed with one on the CPU, and whatever the CPU would have to wait for
is in WAITS. Its numbers are the CPU's. Torch learns of it when this file is imported, and refuses
backward passes in forks then: import it in a process of its own (test_shadow_device.py).
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

#: What the CPU waited for: the operation, and the line of cudt that called it.
WAITS: list[str] = []
_WAIT = {
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"),
    "aten::_linalg_eigh",
}
_CROSS = {"aten::_to_copy", "aten::copy_"}
_INDEX = {"aten::index.Tensor", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
aten = torch.ops.aten


def wait(operation: str) -> None:
    lines = [frame for frame in traceback.extract_stack() if "/cudt/" in frame.filename]
    WAITS.append(f"{operation} in {lines[-1].name}" if lines else operation)


class Shadow(torch.Tensor):
    """A tensor whose values are in `raw`, on the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Shadow:
        options: Any = {"strides": raw.stride(), "storage_offset": raw.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), device=DEVICE, dtype=raw.dtype, **options
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs, name = dict(kwargs or {}), op.name()
        is_mixed = any(
            type(one) is torch.Tensor and one.dim() for one in tree_leaves((args, kwargs))
        )
        if is_mixed and name not in _CROSS | _INDEX:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found shadow and cpu ({name})"
            )
        target = args[0] if name == "aten::copy_" else None
        to_cpu = _is_cpu(kwargs.get("device")) or (
            target is not None and not isinstance(target, Shadow)
        )
        if name in _WAIT or to_cpu:
            wait(name)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        out = op(*tree_map(_raw, args), **tree_map(_raw, kwargs))
        if to_cpu:
            return out
        if written := _written(op):
            results = [args[key] if isinstance(key, int) else kwargs[key] for key in written]
            return results[0] if len(results) == 1 else tuple(results)
        return tree_map(
            lambda value: Shadow(value) if isinstance(value, torch.Tensor) else value, out
        )

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"{self.raw!r} on shadow"


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, Shadow) else value


def _is_cpu(where: Any) -> bool:
    return where is not None and torch.device(where).type == "cpu"


@functools.cache
def _written(op: Any) -> list[int | str]:
    """The arguments that are results of an operation, because it writes into them."""
    arguments = {
        next(iter(one.alias_info.before_set)): one.name if one.kwarg_only else position
        for position, one in enumerate(op._schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write and one.alias_info.before_set
    }
    results = [one.alias_info for one in op._schema.returns]
    return [arguments[next(iter(one.before_set))] for one in results if one and one.is_write]


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


class _Module:
    """`torch.shadow`, as `torch.cuda`. It draws from the CPU's generator."""

    is_available = is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count, current_device = staticmethod(lambda: 1), staticmethod(lambda: 0)
    get_device_name = staticmethod(lambda device=None: "pretended accelerator")
    synchronize = staticmethod(lambda device=None: wait("synchronize"))
    empty_cache = staticmethod(lambda: None)
    set_device = staticmethod(lambda device: None)
    manual_seed = staticmethod(torch.default_generator.manual_seed)
    manual_seed_all = staticmethod(lambda seed: None)
    get_rng_state = staticmethod(lambda device=None: torch.default_generator.get_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


def _factory(op: Any) -> Callable[..., Shadow]:
    def make(*args: Any, **kwargs: Any) -> Shadow:
        return Shadow(op(*args, **{**kwargs, "device": torch.device("cpu"), "pin_memory": False}))

    return make


class _Generator(torch.Generator):
    """A generator of any device gives the CPU's numbers."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]

    def __init__(self, device: Any = "cpu") -> None:
        pass


_setup_privateuseone_for_python_backend("shadow", backend_module=_Module(), hook=_Hooks())
DEVICE = torch.device("shadow", 0)
# Torch forgets the device's operations with their library.
_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("empty.memory_format", _factory(aten.empty.memory_format), "PrivateUse1")
_LIBRARY.impl("empty_strided", _factory(aten.empty_strided.default), "PrivateUse1")
_LIBRARY.impl("_copy_from", lambda source, target, _: target.copy_(source), "PrivateUse1")
torch.Generator = _Generator  # type: ignore[misc]
torch.Tensor.pin_memory = lambda self, device=None: self  # type: ignore
# Otherwise `Module.to` would make new parameters, and lose that two modules share one.
torch.__future__.set_swap_module_params_on_conversion(True)
