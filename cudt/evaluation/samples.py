"""Pictures of test examples: a strip (PNG) with the clean and the noisy frame, and each layer's
reconstruction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import pad

from cudt.data.loader import to_device
from cudt.models.layer_losses import LayerwiseLosses, draw_noise
from cudt.noise import NoiseSource
from cudt.runs import checksums
from cudt.runs.run import Run
from cudt.utils.compat import survive_torchvision_mismatch

survive_torchvision_mismatch()
from torchvision.utils import make_grid  # noqa: E402  (after what lets it be imported)

#: Largest number of layers in a strip; more would be too small to see.
_MOST_LAYERS = 7
#: Noise does not compress: with all 256 greys a report of a few runs would have tens of megabytes.
_GREYS = 32
#: In pixels: the smallest side of a frame, the height of its caption, and the gap between frames.
_SIDE = 160
_CAPTION = 18
_GAP = 4


@dataclass(frozen=True)
class Sample:
    """One test example at one level: its clean and noisy frames, and each layer's
    reconstruction.
    """

    id: str
    gamma: float
    clean: np.ndarray[Any, Any]
    noisy: np.ndarray[Any, Any]
    layers: list[np.ndarray[Any, Any]]
    metrics: list[str]
    """The metric of the noisy frames and of each layer, formatted."""


def save(
    run: Run, layerwise: LayerwiseLosses, noise: NoiseSource, levels: Sequence[float], count: int
) -> list[Path]:
    """Save strips of `count` test examples, spread over the test data, in `samples/`."""
    examples = layerwise.task.examples("test")
    chosen = np.unique(np.linspace(0, len(examples) - 1, count).round().astype(int))
    folder = run.results / "samples"
    # Pictures of an earlier call may show other examples or levels.
    known = [
        name
        for name in checksums.recorded(run.results)
        if name.startswith(f"samples/{noise.kind}-")
    ]
    checksums.forget(run.results, *known)
    for old in folder.glob(f"{noise.kind}-*"):
        old.unlink()
    made = []
    for index in chosen:
        strip = [look(layerwise, examples[index], noise, gamma) for gamma in spread(levels)]
        path = folder / (f"{noise.kind}-{index}-" + re.sub(r"[^\w.]+", "-", strip[0].id) + ".png")
        with checksums.replacing_checked(run.results, f"samples/{path.name}") as file:
            _strip_of(strip, layerwise.task.metric_name).save(file, format="png", optimize=True)
        made.append(path)
    return made


def spread(levels: Sequence[float]) -> list[float]:
    """The lowest, the middle and the highest of some levels."""
    ordered = sorted(levels)
    return sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]})


@torch.no_grad()
def look(layerwise: LayerwiseLosses, example: Any, noise: NoiseSource, gamma: float) -> Sample:
    """One example at one level, with the same noise as in the evaluation."""
    model, task = layerwise.eval().model, layerwise.task
    device = next(layerwise.parameters()).device
    batch = to_device(task.collate([example]), device)
    signal, _ = model.signal(batch)
    noisy = signal + gamma * draw_noise(model, batch, noise).to(device)
    answers: list[Tensor] = []
    model.visit_layers(noisy, batch, lambda state: answers.append(model.readout(state, batch)))
    scores = [task.scores(values.double(), batch).item() for values in (noisy, *answers)]
    clean, degraded, *layers = (task.pictures(values)[0] for values in (signal, noisy, *answers))
    return Sample(
        batch["ids"][0],
        gamma,
        clean,
        degraded,
        layers,
        [f"{task.metric(score):.1f}" for score in scores],
    )


def _strip_of(samples: Sequence[Sample], metric: str) -> Image.Image:
    """One row per level: the middle frame clean, noisy, and after each layer (a selection if there
    are many).
    """
    depth = len(samples[0].layers)
    layers = np.unique(np.linspace(0, depth - 1, min(depth, _MOST_LAYERS)).round().astype(int))
    columns, larger = len(layers) + 2, -(-_SIDE // min(samples[0].clean.shape[1:]))
    cells, captions = [], []
    for sample in samples:
        noisy, *by_layer = sample.metrics
        captions += ["clean", f"noise {sample.gamma:g}: {metric} {noisy}"]
        captions += [f"layer {layer + 1}: {metric} {by_layer[layer]}" for layer in layers]
        for frames in (sample.clean, sample.noisy, *(sample.layers[layer] for layer in layers)):
            frame = (
                torch.tensor(frames[len(frames) // 2])
                .repeat_interleave(larger, 0)
                .repeat_interleave(larger, 1)
            )
            # Room for the caption above the frame.
            cells.append(pad(frame, (0, 0, _CAPTION, 0), value=255).unsqueeze(0))
    grid = make_grid(cells, nrow=columns, padding=_GAP, pad_value=255)
    picture = Image.fromarray(grid[0].numpy())
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=12)
    height, width = cells[0].shape[1] + _GAP, cells[0].shape[2] + _GAP
    for cell, caption in enumerate(captions):
        draw.text(
            (_GAP + cell % columns * width, _GAP + cell // columns * height),
            caption,
            fill=0,
            font=font,
        )
    step = 255 / (_GREYS - 1)
    return picture.point([round(round(grey / step) * step) for grey in range(256)]).quantize(_GREYS)
