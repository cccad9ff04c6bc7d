"""The device to compute on, the precision, and the global random seeds."""

from __future__ import annotations

import contextlib
import functools
import random
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedDataParallelKwargs, parse_flag_from_env, patch_environment

from cudt.utils import processes
from cudt.utils.autocast import Precision
from cudt.utils.errors import DataWarning, UserError

#: `auto`, `cpu`, or the name of an accelerator that torch finds, such as `cuda` or `xpu`.
DeviceName = str
RandomState = dict[str, torch.Tensor | None]


def choose(device: DeviceName) -> torch.device:
    """The torch device of a name; `auto` is the accelerator if torch finds one. Each process has
    its own.
    """
    found = accelerator()
    if parse_flag_from_env("ACCELERATE_USE_CPU"):
        if device not in ("auto", "cpu"):
            raise UserError(
                f"--device {device}: accelerate launch was started for the CPU; leave out "
                "--device or --cpu"
            )
        return torch.device("cpu")
    if processes.count() > 1 and found is not None:
        found = torch.device(found.type, processes.local_index() % torch.accelerator.device_count())
    if device == "auto":
        return found or torch.device("cpu")
    if device == "mps":
        raise UserError(
            "--device mps: losses are measured in double precision, which MPS lacks; use "
            "--device cpu"
        )
    if device != "cpu" and (found is None or found.type != device):
        raise UserError(
            f"--device {device}: torch finds no {device.upper()} device; use --device cpu or auto"
        )
    return torch.device("cpu") if device == "cpu" or found is None else found


def accelerator() -> torch.device | None:
    """The accelerator that torch finds, if any; without MPS, which cannot compute in double
    precision.
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None or found.type == "mps" else found


def make_current(device: torch.device) -> None:
    """Let pinned memory and streams belong to a device that one of several processes has for
    itself, not to the first.

    Otherwise every process would take memory on the first device. Accelerate does the same for
    training.
    """
    if device.index is not None:
        torch.accelerator.set_device_index(device.index)


def name_of(device: torch.device) -> str:
    """The name of the hardware, such as `NVIDIA A100-SXM4-40GB`; the type of the device if torch
    does not know it.
    """
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if device.type == "cpu" or named is None else named(device)


def synchronize() -> None:
    """Wait until the accelerator has finished, if there is one."""
    if accelerator() is not None:
        torch.accelerator.synchronize()


def empty_cache() -> None:
    """Give memory that is not in use back to the accelerator, if there is one."""
    if (found := accelerator()) is not None:
        torch.get_device_module(found).empty_cache()


def random_state() -> RandomState:
    """The states of torch's global generators, which dropout draws from."""
    return {"generator": torch.get_rng_state(), "device_generator": generator_state()}


def set_random_state(state: RandomState) -> None:
    """Set what `random_state` returned."""
    assert state["generator"] is not None, "every process has a generator of the CPU"
    torch.set_rng_state(state["generator"])
    set_generator_state(state["device_generator"])


def seed_process(seed: int, step: int, process: int) -> None:
    """Seed torch's global generators as no other process does: each has examples of its own, and
    their dropout.

    The main process keeps what `seed_everything` seeded, and so does a process that is alone.
    """
    if process:
        # Not seed + process, which would be the main process of another seed.
        torch.manual_seed(
            int(np.random.SeedSequence([seed, step, process]).generate_state(1, np.uint64)[0] >> 1)
        )


def generator_state() -> torch.Tensor | None:
    """The state of the accelerator's global generator, on the CPU; None without an accelerator."""
    found = accelerator()
    return None if found is None else torch.get_device_module(found).get_rng_state()


def set_generator_state(state: torch.Tensor | None) -> None:
    """Set what `generator_state` returned; without an accelerator, do nothing."""
    if state is not None and (found := accelerator()) is not None:
        torch.get_device_module(found).set_rng_state(state)


def accelerator_for(
    device: DeviceName,
    precision: Precision,
    trackers: Sequence[str] = (),
    folder: Path | None = None,
) -> Accelerator:
    """An Accelerator for one training; bf16 is autocast, on the CPU too. Trackers write into a
    folder.
    """
    chosen = choose(device)
    # Accelerate keeps the settings of the first training in a process; reset them, so that each has
    # its own.
    if PartialState._shared_state and PartialState().num_processes == 1:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    processes.join()
    mixed = "bf16" if precision == "bf16" else "no"
    warn_if_slow(precision, "training.precision", chosen)
    alone = processes.count() == 1
    # Accelerate does not know every accelerator that torch knows. Of several processes each gets a
    # device of its own.
    named = {"ACCELERATE_TORCH_DEVICE": chosen.type} if alone and chosen.type != "cpu" else {}
    # Of several processes: gradients are stored once, in the buckets that are sent, instead of
    # copied there.
    buckets = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    # cudt shards models itself (models/sharding.py).
    named["ACCELERATE_USE_FSDP"] = "false"
    with (
        patch_environment(**named),
        processes.not_launched() if alone else contextlib.nullcontext(),
    ):
        return Accelerator(
            cpu=chosen.type == "cpu",
            mixed_precision=mixed,
            log_with=[*trackers] or None,
            project_dir=folder,
            kwargs_handlers=[buckets],
        )


def cpu_has_bf16() -> bool:
    """Whether the CPU has instructions for bf16 (AVX-512 BF16, AMX, or those of ARM)."""
    if not hasattr(torch.cpu, "get_capabilities"):  # earlier versions of torch
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    known = torch.cpu.get_capabilities()
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def warn_if_slow(precision: Precision, key: str, device: torch.device) -> None:
    """Warn of bf16 on a CPU that has no instructions for it; `key` is the recipe's key that asks
    for it.
    """
    if (
        precision == "bf16"
        and device.type == "cpu"
        and processes.is_main_process()
        and not cpu_has_bf16()
    ):
        _warn_of_slow_bf16(key)


@functools.cache
def _warn_of_slow_bf16(key: str) -> None:
    """Once for all runs of a process."""
    message = (
        f"{key}: bf16: this CPU has no instructions for bf16 and computes it through fp32, which "
        "is slower than fp32; "
        f"use {key}: fp32"
    )
    warnings.warn(message, DataWarning, stacklevel=3)


@contextlib.contextmanager
def matmul_in(tf32: bool, device: torch.device) -> Iterator[None]:
    """Multiply fp32 matrices in TF32 on CUDA, if asked for; afterwards in what was set before."""
    if not tf32 or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def seed_everything(seed: int) -> None:
    """Seed the global generators; data order and noise have generators of their own."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
