"""The device to compute on, its precision, and the global random generators."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedDataParallelKwargs, parse_flag_from_env, patch_environment

from cudt.utils import processes
from cudt.utils.errors import UserError

#: `auto`, `cpu`, or the name of an accelerator that torch finds, such as `cuda` or `xpu`.
DeviceName = str
# torch drops a library's registrations when the object is deleted, so it is kept here.
_kept_alive: list[Any] = []


def accelerator() -> torch.device | None:
    """The accelerator that torch finds, if any; without MPS, which cannot compute in double
    precision.
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None or found.type == "mps" else found


def choose(device: DeviceName) -> torch.device:
    """The torch device of a name; `auto` is the accelerator if torch finds one. Of several
    processes each has its own.
    """
    found = None if parse_flag_from_env("ACCELERATE_USE_CPU") else accelerator()
    if device == "cpu" or (device == "auto" and found is None):
        return torch.device("cpu")
    if found is None or device not in ("auto", found.type):
        reason = f"torch finds no {device.upper()} device"
        if device == "mps":
            reason = "losses are measured in double precision, which MPS lacks"
        raise UserError(f"--device {device}: {reason}; use --device cpu or auto")
    if processes.count() > 1:
        local = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
        # Pinned memory and streams belong to the current device.
        torch.accelerator.set_device_index(local)
        found = torch.device(found.type, local)
    return found


def name_of(device: torch.device) -> str:
    """The name of the hardware, such as `NVIDIA A100-SXM4-40GB`, or the type of the device."""
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if device.type == "cpu" or named is None else named(device)


def can_pin(device: torch.device) -> bool:
    """Whether copies to a device start from pinned memory."""
    return device.type != "cpu" and torch.accelerator.is_available()


def sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values on a device. The CPU does not wait for a copy from its pinned memory; from other
    memory it would wait for all that the device is doing.
    """
    if values.device.type == "cpu" and can_pin(device):
        values = values.pin_memory()
    return values.to(device, non_blocking=device.type != "cpu")


def accelerator_for(
    device: DeviceName,
    precision: str,
    trackers: Sequence[str] = (),
    folder: Path | None = None,
) -> Accelerator:
    """An Accelerator for one training; bf16 is autocast. Trackers write into a folder."""
    chosen = choose(device)
    # Accelerate keeps the settings of the first training in a process.
    if PartialState._shared_state and PartialState().num_processes == 1:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    processes.join()
    # cudt shards models itself (models/sharding.py).
    variables = {"ACCELERATE_USE_FSDP": "false"}
    if processes.count() == 1:
        # Batch systems set these for processes that work alone, too.
        sizes = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
        variables |= {**dict.fromkeys(sizes, "1"), "LOCAL_RANK": "-1"}
        if chosen.type != "cpu":
            # Accelerate does not find every accelerator that torch finds.
            variables["ACCELERATE_TORCH_DEVICE"] = chosen.type
    # Gradients are stored once, in the buckets that are sent, instead of copied there.
    buckets = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    with patch_environment(**variables):
        return Accelerator(
            cpu=chosen.type == "cpu",
            mixed_precision="bf16" if precision == "bf16" else "no",
            log_with=[*trackers] or None,
            project_dir=folder,
            kwargs_handlers=[buckets],
        )


@contextmanager
def matmul_in(tf32: bool, device: torch.device) -> Iterator[None]:
    """Multiply fp32 matrices in TF32 on CUDA, if asked for; afterwards in what was set before."""
    before = torch.get_float32_matmul_precision()
    if tf32 and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# ---------------------------------------------------------------- random generators


def seed_process(seed: int, step: int, process: int) -> None:
    """Seed torch's global generators as no other process does: each has examples of its own, and
    their dropout. The main process keeps its own.
    """
    if process:
        # Not seed + process, which would be the main process of another seed.
        state = np.random.SeedSequence([seed, step, process]).generate_state(1, np.uint64)
        torch.manual_seed(int(state[0] >> 1))


def random_state() -> dict[str, torch.Tensor]:
    """The states of torch's global generators, of CPU and accelerator, which dropout draws from."""
    found = accelerator()
    there = {} if found is None else {found.type: torch.get_device_module(found).get_rng_state()}
    return {"cpu": torch.get_rng_state(), **there}


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """Set what `random_state` returned; another accelerator keeps its own."""
    torch.set_rng_state(state["cpu"])
    if (found := accelerator()) is not None and found.type in state:
        torch.get_device_module(found).set_rng_state(state[found.type])


# ---------------------------------------------------------------- installed packages


def survive_torchvision_mismatch() -> None:
    """Make torchvision importable with a build of torch that its compiled operators do not support,
    usually a CUDA wheel with a CPU torch; with it, every model class of transformers.

    `import torchvision` fails because its operator `nms` has no schema. Declaring it is enough for
    everything but the compiled operators themselves.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401  (the import is the test)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept_alive.append(library)
        # A failed import leaves some of the package's modules in sys.modules.
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
