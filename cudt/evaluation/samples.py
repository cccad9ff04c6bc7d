"""Pictures of test examples in extra/samples/: a row for each of three levels, with the clean and
the noisy frame and each layer's reconstruction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cudt.data.loader import to_device
from cudt.models.layer_losses import LayerwiseLosses, draw_noise
from cudt.noise import NoiseSource
from cudt.runs.run import Run
from cudt.utils.device import survive_torchvision_mismatch

survive_torchvision_mismatch()
from torchvision.utils import make_grid, save_image  # noqa: E402  (after what lets it be imported)

#: Largest number of layers in a row; more would be too small to see.
_MOST_LAYERS = 7


def folder_of(run: Run) -> Path:
    """The folder of the pictures of a run with these weights."""
    name = "samples" if run.other_weights is None else f"samples-{run.weights}"
    return run.path / "extra" / name


def count(run: Run, kind: str) -> int:
    """The number of examples of which there are pictures under one kind of noise."""
    return len([*folder_of(run).glob(f"{kind}-*.png")])


def save(
    run: Run, layerwise: LayerwiseLosses, noise: NoiseSource, levels: Sequence[float], number: int
) -> None:
    """Save pictures of some test examples, spread over the test data, in place of earlier ones."""
    examples, folder = layerwise.task.examples("test"), folder_of(run)
    for old in folder.glob(f"{noise.kind}-*.png"):
        run.delete(old.relative_to(run.path).as_posix())
    for index in np.unique(np.linspace(0, len(examples) - 1, number).round().astype(int)):
        name, cells = picture(layerwise, examples[index], noise, spread(levels))
        stem = f"{noise.kind}-{index}-" + re.sub(r"[^\w.]+", "-", name)
        file = folder.relative_to(run.path) / f"{stem}.png"
        with run.replacing(file.as_posix()) as temporary:
            save_image(cells, temporary, format="png")


def spread(levels: Sequence[float]) -> list[float]:
    """The lowest, the middle and the highest of some levels."""
    ordered = sorted(levels)
    return sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]})


@torch.no_grad()
def picture(
    layerwise: LayerwiseLosses, example: Any, noise: NoiseSource, levels: Sequence[float]
) -> tuple[str, Tensor]:
    """The id of an example and its middle frame at some levels, with the noise of the evaluation:
    clean, noisy, and after each layer (a selection if there are many).
    """
    model, task = layerwise.eval().model, layerwise.task
    device = next(layerwise.parameters()).device
    batch = to_device(task.collate([example]), device)
    signal, drawn = model.signal(batch)[0], draw_noise(model, batch, noise).to(device)
    depth = model.n_layers
    chosen = np.unique(np.linspace(0, depth - 1, min(depth, _MOST_LAYERS)).round().astype(int))
    frames: list[Tensor] = []
    for level in levels:
        answers: list[Tensor] = []
        noisy = signal + level * drawn
        model.visit_layers(noisy, batch, lambda state: answers.append(model.readout(state, batch)))  # noqa: B023
        for values in (signal, noisy, *(answers[layer] for layer in chosen)):
            clip = torch.from_numpy(task.pictures(values)[0])
            frames.append(clip[len(clip) // 2].unsqueeze(0) / 255)
    return batch["ids"][0], make_grid(frames, nrow=len(chosen) + 2, padding=4, pad_value=1)
