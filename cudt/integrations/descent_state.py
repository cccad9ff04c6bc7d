"""λ, the dual optimiser and the slack in somebody else's checkpoints: JSON and safetensors, no
pickle.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from cudt.method.descent import LayerwiseDescent
from cudt.training.state_tree import put_together, taken_apart
from cudt.utils.errors import UserError
from cudt.utils.files import write_atomically, write_text
from cudt.utils.reading import json_object

_PLAIN, _TENSORS = "descent.json", "descent.safetensors"


def save(folder: Path, descent: LayerwiseDescent, sigma_x: float | None) -> None:
    """Write the state of the constraints, and σ_x if noise is added, into the folder of a
    checkpoint.
    """
    plain, tensors = taken_apart({"sigma_x": sigma_x, "descent": dict(descent.state_dict())})
    write_atomically(folder / _TENSORS, lambda file: file.write(to_bytes(tensors)))
    write_text(folder / _PLAIN, json.dumps({"state": plain}))


def load(folder: Path, descent: LayerwiseDescent) -> float | None:
    """Load what `save` wrote, and return σ_x; a UserError if it is missing or does not fit."""
    try:
        plain = json_object((folder / _PLAIN).read_bytes())
        state = put_together(plain["state"], load_file(folder / _TENSORS))
        descent.load_state_dict(state["descent"])
        return state["sigma_x"]
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no {_PLAIN}, so λ is not known: the checkpoint was not written by a "
            "trainer with layerwise "
            "descent; start without resume_from_checkpoint"
        ) from None
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{folder}: {_PLAIN} and {_TENSORS} do not fit this training ({reason})"
        ) from None
