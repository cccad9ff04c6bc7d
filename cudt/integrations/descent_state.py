"""λ, the dual optimiser and the slack in somebody else's checkpoints, as one file of torch that is
loaded with weights_only.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from cudt.method.descent import LayerwiseDescent
from cudt.utils.errors import UserError

_NAME = "descent.pt"


def save(folder: Path, descent: LayerwiseDescent, sigma_x: float | None) -> None:
    """Write the state of the constraints, and σ_x if noise is added, into the folder of a
    checkpoint.
    """
    torch.save({"sigma_x": sigma_x, "descent": descent.state_dict()}, folder / _NAME)


def load(folder: Path, descent: LayerwiseDescent) -> float | None:
    """Load what `save` wrote, and return σ_x; a UserError if it is missing or does not fit."""
    try:
        state = torch.load(folder / _NAME, weights_only=True)
        descent.load_state_dict(state["descent"])
        return state["sigma_x"]
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no {_NAME}, so λ is not known: the checkpoint was not written by a "
            "trainer with layerwise descent; start without resume_from_checkpoint"
        ) from None
    except (KeyError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{folder / _NAME}: does not fit this training ({reason})") from None
