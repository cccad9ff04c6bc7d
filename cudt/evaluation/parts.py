"""Measurements at single noise levels as files: several processes measure a run, and one of them
writes the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cudt.evaluation.stored import MeasuredExamples
from cudt.models.layer_losses import Measurement
from cudt.runs.examples import Part
from cudt.utils.files import write_atomically


def write(folder: Path, part: Part, measured: MeasuredExamples) -> None:
    """Store the losses and scores of all examples at one level, to the last bit and in their
    order.
    """
    one = Measurement.joined(list(measured.blocks()))
    columns = {
        "losses": one.losses,
        "scores": one.scores,
        "weights": one.weights,
        "input_scores": one.input_scores,
    }
    arrays: dict[str, Any] = {
        name: values.numpy() for name, values in columns.items() if values is not None
    }
    write_atomically(
        _file(folder, part), lambda file: np.savez(file, ids=np.array(one.ids, dtype=str), **arrays)
    )


def read(folder: Path, part: Part) -> Measurement | None:
    """What `write` stored; None if there is no file."""
    path = _file(folder, part)
    if not path.is_file():
        return None
    with np.load(path) as stored:
        columns = {name: torch.from_numpy(stored[name]) for name in stored if name != "ids"}
        return Measurement(ids=stored["ids"].tolist(), **columns)


def _file(folder: Path, part: Part) -> Path:
    return folder / f"{part.perturbation}-{part.gamma!r}-{part.seed}.npz"
