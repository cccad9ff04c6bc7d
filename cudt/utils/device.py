"""The device to compute on, the precision, and the global random seeds."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from cudt.utils.errors import UserError

DeviceName = Literal["auto", "cpu", "cuda"]


def choose(device: DeviceName) -> torch.device:
    """The torch device of a name; `auto` is CUDA if available."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device; use --device cpu or auto")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def accelerator_for(device: DeviceName, precision: Literal["fp32", "bf16"]) -> Accelerator:
    """An Accelerator for one training; bf16 autocast only on CUDA, because it is slower on most CPUs."""
    chosen = choose(device)
    # Accelerate keeps the settings of the first training in a process; reset them, so that each has its own.
    if PartialState._shared_state and PartialState().num_processes == 1:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    mixed = "bf16" if precision == "bf16" and chosen.type == "cuda" else "no"
    return Accelerator(cpu=chosen.type == "cpu", mixed_precision=mixed)


def seed_everything(seed: int) -> None:
    """Seed the global generators; data order and noise have generators of their own."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
