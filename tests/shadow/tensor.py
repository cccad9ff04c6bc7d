"""Tensors on device "shadow": their values are on the CPU, and they are as strict as tensors on CUDA.

Every operation on them goes through `Shadow.__torch_dispatch__`, below autograd: it refuses operands on two devices,
records what a GPU would have to be waited for, and computes on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.shadow.watching import calling_line, record_copy, record_wait

NAME = "shadow"
aten = torch.ops.aten
#: Operations that the CPU waits for: their result's shape depends on values, or torch asks whether they converged.
_WAITS = {
    "aten::_linalg_eigh",
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
#: Copies from one device to another.
_CROSSING = {"aten::_to_copy", "aten::copy_"}
#: Indices may be on the CPU; they are copied then.
_INDEXING = {"aten::index.Tensor", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
#: Operations that are not computed as they are; filled by `replaced`.
_REPLACED: dict[str, Callable[..., Any]] = {}
#: The addresses of the device's generators: torch hands an operation another Python object for the same generator.
GENERATORS: set[int] = set()
#: Copies to the CPU that are not finished: the tensor, and what will be in it.
_pending: list[tuple[torch.Tensor, torch.Tensor]] = []


def device() -> torch.device:
    return torch.device(NAME, 0)


class Shadow(torch.Tensor):
    """A tensor on device "shadow" whose values are in `raw`, on the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Shadow:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=device(),
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = op.name()
        _refuse_two_devices(op, name, args, kwargs)
        if name in _REPLACED:
            return _REPLACED[name](*args, **kwargs)
        if name in _WAITS or (name in _INDEXING and _has_mask(args[1])):
            wait(name)
        to_cpu = _is_cpu(kwargs.get("device"))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        out = op(*tree_map(raw_of, args), **tree_map(raw_of, kwargs))
        return out if to_cpu else _answer(op, args, kwargs, out)

    # What torch does below its dispatcher, with the memory of a tensor, which a tensor without memory has to do itself.

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def pin_memory(self, device: Any = None) -> torch.Tensor:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            return self.raw.type().replace("torch.", f"torch.{NAME}.")
        return super().type(dtype, non_blocking, **kwargs)

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return repr(self.raw).rstrip(")") + f", device='{self.device}')"

    def __format__(self, specification: str) -> str:
        return self.item().__format__(specification) if self.dim() == 0 else repr(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shadow:
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
        if id(self) not in memo:
            copied = Shadow(self.raw.clone()).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, self.requires_grad)
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a tensor on the CPU: that is what `torch.load(…, map_location="cpu")` makes of one on a device."""
        wait("torch.save")
        return self.raw.detach().requires_grad_(self.requires_grad).__reduce_ex__(protocol)


_base_data: Any = torch.Tensor.data


def _set_data(self: Shadow, value: torch.Tensor) -> None:
    """`tensor.data = value`: torch exchanges shape and dtype; the values have to follow."""
    _base_data.__set__(self, value)
    self.raw = value.raw if isinstance(value, Shadow) else value


Shadow.data = property(lambda self: _base_data.__get__(self), _set_data)  # type: ignore[assignment]


def address(generator: Any) -> int:
    """The address of a generator's state, which all Python objects of the generator share."""
    return generator._cdata


def raw_of(value: Any) -> Any:
    """The values of a tensor on the device; anything else as it is."""
    return value.raw if isinstance(value, Shadow) else value


def replaced(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that is called instead of an operation."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _REPLACED[name] = function
        return function

    return register


def wait(operation: str) -> None:
    """Record that the CPU waits for the device, and finish the copies that are under way."""
    record_wait(operation)
    while _pending:
        target, values = _pending.pop()
        target.copy_(values)


def copy_to_cpu(values: torch.Tensor, target: torch.Tensor) -> None:
    """Begin a copy that nobody waits for: the target holds nonsense until the device is waited for."""
    nonsense = float("nan") if target.is_floating_point() or target.is_complex() else False
    if not target.is_floating_point() and target.dtype != torch.bool:
        nonsense = torch.iinfo(target.dtype).min
    target.fill_(nonsense)
    _pending.append((target, values.clone()))


def _refuse_two_devices(op: Any, name: str, args: Any, kwargs: Any) -> None:
    """Refuse tensors on two devices, and a generator of the other one; as on CUDA, a number may be on the CPU."""
    leaves = tree_leaves((args, kwargs))
    if any(isinstance(value, torch.Generator) and address(value) not in GENERATORS for value in leaves):
        raise RuntimeError(
            f"Expected a '{NAME}' device type for generator but found 'cpu' ({name} at {calling_line()})"
        )
    strangers = [value for value in leaves if isinstance(value, torch.Tensor) and not isinstance(value, Shadow)]
    if not strangers or name in _CROSSING:
        return
    if name in _INDEXING:
        record_copy(f"{name} with indices on the CPU")
        strangers = [value for value in tree_leaves((args[0], args[2:])) if any(value is one for one in strangers)]
    takes_numbers = torch.Tag.pointwise in op.tags or name.startswith(("aten::_foreach", "aten::_fused"))
    written = args[0] if op._schema.is_mutable else None
    if any(value.dim() or not takes_numbers or value is written for value in strangers):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {device()} and cpu "
            f"({name} at {calling_line()})"
        )


def _has_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _is_cpu(where: Any) -> bool:
    return where is not None and torch.device(where).type == "cpu"


@functools.cache
def _written(op: Any) -> tuple[int | str | None, ...]:
    """For each result of an operation the argument that it is, if the operation writes into one."""
    if not op._schema.returns:
        return ()
    arguments = {
        next(iter(argument.alias_info.before_set)): argument.name if argument.kwarg_only else position
        for position, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    return tuple(
        arguments.get(next(iter(result.alias_info.before_set)))
        if result.alias_info is not None and result.alias_info.is_write
        else None
        for result in op._schema.returns
    )


def _answer(op: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """The result on the device; what was written into is returned itself, with its new shape."""
    written = [key if key is None else kwargs[key] if isinstance(key, str) else args[key] for key in _written(op)]
    if op._schema.returns and not any(value is not None for value in written):
        return tree_map(lambda value: Shadow(value) if isinstance(value, torch.Tensor) else value, out)
    for value in written:
        if isinstance(value, Shadow) and (value.shape != value.raw.shape or value.stride() != value.raw.stride()):
            _base_data.__set__(value, Shadow(value.raw))
    return None if not written else written[0] if len(written) == 1 else tuple(written)
