"""Pictures of test examples in extra/samples/: a row for each of three levels, with the clean and
the noisy frame and each layer's reconstruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cudt.data.loader import to_device
from cudt.models.layer_losses import LayerwiseLosses, draw_noise
from cudt.noise import NoiseSource
from cudt.runs.run import OWN, Run
from cudt.utils.device import survive_torchvision_mismatch

survive_torchvision_mismatch()
from torchvision.utils import make_grid, save_image  # noqa: E402  (after what lets it be imported)


def folder_of(run: Run) -> Path:
    """The folder of the pictures of a run with these weights, on these data."""
    weights = "" if run.other_weights is None else f"-{run.weights}"
    data = "" if run.data == OWN else f"-on-{run.data}"
    return run.path / "extra" / f"samples{weights}{data}"


def count(run: Run, kind: str) -> int:
    """The number of examples of which there are pictures under one kind of noise."""
    return len([*folder_of(run).glob(f"{kind}-*.png")])


def save(
    run: Run, layerwise: LayerwiseLosses, noise: NoiseSource, levels: Sequence[float], number: int
) -> None:
    """Save pictures of some test examples, spread over the test data, in place of earlier ones: at
    the lowest, the middle and the highest level.
    """
    examples, folder, ordered = layerwise.task.examples("test"), folder_of(run), sorted(levels)
    shown = sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]})
    for old in folder.glob(f"{noise.kind}-*.png"):
        run.delete(old.relative_to(run.path).as_posix())
    for index in np.unique(np.linspace(0, len(examples) - 1, number).round().astype(int)):
        file = folder.relative_to(run.path) / f"{noise.kind}-{index}.png"
        with run.replacing(file.as_posix()) as temporary:
            save_image(picture(layerwise, examples[index], noise, shown), temporary, format="png")


@torch.no_grad()
def picture(
    layerwise: LayerwiseLosses, example: Any, noise: NoiseSource, levels: Sequence[float]
) -> Tensor:
    """The middle frame of an example at some levels, with the noise of the evaluation: clean,
    noisy, and after each layer.
    """
    model, task = layerwise.eval().model, layerwise.task
    device = next(layerwise.parameters()).device
    batch = to_device(task.collate([example]), device)
    signal, mask = model.signal(batch)
    drawn = draw_noise(batch, signal, mask, noise).to(device)
    frames: list[Tensor] = []
    for level in levels:
        noisy = signal + level * drawn
        answers = [model.readout(state, batch) for state in model.layer_states(noisy, batch)]
        for values in (signal, noisy, *answers):
            clip = torch.from_numpy(task.pictures(values)[0])
            frames.append(clip[len(clip) // 2].unsqueeze(0) / 255)
    return make_grid(frames, nrow=model.n_layers + 2, padding=4, pad_value=1)
