"""A pretended accelerator: device "shadow", in Python alone.

It computes on the CPU, to the last bit as the CPU does, and is strict as CUDA is: tensors on two devices and generators
of another device raise, with the operation and the line; whatever a GPU would have to be waited for is recorded.

    with active(), watch() as seen:
        model.to("shadow")
        ...
    print(seen)

Torch learns of the device when this file is imported, which has to be before the first backward pass of the process:
import it at the top of a test's file. It is available, and `auto` chooses it, only inside `active()`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.shadow import autocast, operators
from tests.shadow.tensor import GENERATORS, NAME, Shadow, address, wait
from tests.shadow.tensor import device as shadow_device
from tests.shadow.watching import Event, Watch, watch

__all__ = ["DEVICE", "Event", "Watch", "active", "watch"]

_is_active = False


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return _is_active

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Stream(torch.Stream):
    def synchronize(self) -> None:
        wait("Stream.synchronize")


class _Event(torch.Event):
    def synchronize(self) -> None:
        wait("Event.synchronize")


class _Module:
    """`torch.shadow`, as `torch.cuda`."""

    Stream, Event = _Stream, _Event

    def is_available(self) -> bool:
        return _is_active

    def is_initialized(self) -> bool:
        return _is_active

    def device_count(self) -> int:
        return int(_is_active)

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def get_device_name(self, device: Any = None) -> str:
        return "pretended accelerator"

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def synchronize(self, device: Any = None) -> None:
        wait("synchronize")

    def current_stream(self, device: Any = None) -> torch.Stream:
        return _Stream(device=NAME)

    def empty_cache(self) -> None:
        pass

    # The device draws from the CPU's generator, so that models with dropout get the CPU's numbers.

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.default_generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.default_generator.set_state(state)

    def _is_in_bad_fork(self) -> bool:
        return False


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchGenerator)


_TorchGenerator = torch.Generator


class _Generator(_TorchGenerator, metaclass=_AnyGenerator):
    """`torch.Generator`, also of the device, where it gives the CPU's numbers."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != NAME:
            return _TorchGenerator(device)
        made = super().__new__(cls)
        GENERATORS.add(address(made))
        weakref.finalize(made, GENERATORS.discard, address(made))
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return shadow_device()


def _drawing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch that draws numbers, which refuses a generator of the device for a tensor on the CPU."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        generator, where = kwargs.get("generator"), kwargs.get("device")
        on_cpu = where is None or torch.device(where).type == "cpu"
        if generator is not None and generator.device.type == NAME and on_cpu:
            raise RuntimeError(f"Expected a 'cpu' device type for generator but found '{NAME}'")
        return function(*args, **kwargs)

    return draw


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    if _is_pinned(tensor):
        return tensor
    pinned = tensor.clone()
    pinned.untyped_storage().is_pinned_for_shadow = True  # type: ignore[attr-defined]
    return pinned


def _is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    return getattr(tensor.untyped_storage(), "is_pinned_for_shadow", False)


def _empty(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.empty` and others, which can pin."""

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        pins = kwargs.pop("pin_memory", False)
        made = function(*args, **kwargs)
        return made.pin_memory() if pins else made

    return make


def _patches() -> Iterator[Any]:
    module = torch.shadow  # type: ignore[attr-defined]
    yield mock.patch.object(torch, "Generator", _Generator)
    yield mock.patch.object(torch, "Stream", _Stream)
    yield mock.patch.object(torch, "Event", _Event)
    yield mock.patch.object(torch.Tensor, "pin_memory", _pin_memory)
    yield mock.patch.object(torch.Tensor, "is_pinned", _is_pinned)
    for name in ("synchronize", "current_stream", "empty_cache"):
        yield mock.patch.object(torch.accelerator, name, getattr(module, name))
    for name in ("rand", "randn", "randint", "randperm", "normal"):
        yield mock.patch.object(torch, name, _drawing(getattr(torch, name)))
    for name in ("empty", "zeros", "ones", "full", "empty_like", "zeros_like"):
        yield mock.patch.object(torch, name, _empty(getattr(torch, name)))


@contextmanager
def active() -> Iterator[None]:
    """Make the device available, so that `--device auto` and `--device shadow` choose it."""
    global _is_active
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    patches = list(_patches())
    try:
        for patch in patches:
            patch.start()
        # Otherwise `Module.to` would make new parameters, and lose that two modules share one.
        torch.__future__.set_swap_module_params_on_conversion(True)
        _is_active = True
        yield
    finally:
        _is_active = False
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        for patch in reversed(patches):
            patch.stop()


def _factory(op: Any) -> Callable[..., Shadow]:
    def make(*args: Any, **kwargs: Any) -> Shadow:
        if not _is_active:
            raise RuntimeError("device shadow: available only inside tests.shadow.device.active()")
        kwargs.pop("pin_memory", None)
        return Shadow(op(*args, **{**kwargs, "device": torch.device("cpu")}))

    return make


def _register() -> tuple[torch.library.Library, ...]:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hooks())
    library, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library.impl("empty.memory_format", _factory(torch.ops.aten.empty.memory_format), "PrivateUse1")
    library.impl("empty_strided", _factory(torch.ops.aten.empty_strided.default), "PrivateUse1")
    for name in ("tril_indices", "triu_indices"):
        library.impl(name, _factory(getattr(torch.ops.aten, name).default), "PrivateUse1")
    library.impl("_copy_from", operators.copy_from, "PrivateUse1")
    library.impl("scaled_dot_product_attention", operators.attention, "AutogradPrivateUse1")
    for name in ("mish_backward", "silu_backward"):
        # Without a kernel of its own, a device computes these step by step, and rounds differently.
        library.impl(name, operators.computed(getattr(torch.ops.aten, name).default), "PrivateUse1")
    autocast.register(library)
    return library, others


#: Torch forgets the device's operations with their libraries.
_LIBRARIES = _register()
DEVICE = shadow_device()
