"""Where to compute, and in which precision."""

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
    """CUDA where there is one, or what was asked for."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu or auto")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def accelerator_for(device: DeviceName, precision: Literal["fp32", "bf16"]) -> Accelerator:
    """Accelerate for one training; bf16 autocast on CUDA only, where it is the gain it is meant to be."""
    chosen = choose(device)
    # Accelerate keeps the first run's settings for the life of the process; each training chooses its own.
    if PartialState._shared_state and PartialState().num_processes == 1:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    mixed = "bf16" if precision == "bf16" and chosen.type == "cuda" else "no"
    return Accelerator(cpu=chosen.type == "cpu", mixed_precision=mixed)


def seed_everything(seed: int) -> None:
    """Every global generator; data order and noise have their own."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
