"""Pictures of test examples: clean, noisy and each layer's reconstruction, as a strip (PNG) and animated (GIF)."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from cudt.data.batching import to_device
from cudt.models.layer_losses import LayerwiseLosses, draw_noise
from cudt.noise.source import NoiseSource
from cudt.runs import checksums
from cudt.runs.run import Run

#: Largest number of layers in a strip; more would be too small to see.
_MOST_LAYERS = 7
#: Noise does not compress: with all 256 greys a report of a few runs would have tens of megabytes.
_GREYS = 32
#: In pixels: the smallest side of a frame, the height of its caption, and the gap between frames.
_SIDE = 160
_CAPTION = 20
_GAP = 4
_MILLISECONDS = 150


@dataclass(frozen=True)
class Sample:
    """One test example at one level: its clean and noisy frames, and each layer's reconstruction."""

    id: str
    gamma: float
    clean: np.ndarray[Any, Any]
    noisy: np.ndarray[Any, Any]
    layers: list[np.ndarray[Any, Any]]
    metrics: list[str]
    """The metric of the noisy frames and of each layer, formatted."""


def save(run: Run, layerwise: LayerwiseLosses, noise: NoiseSource, levels: Sequence[float], count: int) -> list[Path]:
    """Save strips and animations of `count` test examples, spread over the test data, in `samples/`."""
    examples = layerwise.task.examples("test")
    chosen = np.unique(np.linspace(0, len(examples) - 1, count).round().astype(int))
    folder = run.results / "samples"
    # Pictures of an earlier call may show other examples or levels.
    known = [name for name in checksums.recorded(run.results) if name.startswith(f"samples/{noise.kind}-")]
    checksums.forget(run.results, *known)
    for old in folder.glob(f"{noise.kind}-*"):
        old.unlink()
    made = []
    for index in chosen:
        strip = [look(layerwise, examples[index], noise, gamma) for gamma in spread(levels)]
        moving = look(layerwise, examples[index], noise, middle(levels))
        stem = f"{noise.kind}-{index}-" + re.sub(r"[^\w.]+", "-", strip[0].id)
        made += [folder / f"{stem}.png", folder / f"{stem}.gif"]
        drawn = (partial(_draw_strip, strip, layerwise.task.metric_name), partial(_draw_moving, moving))
        for path, draw in zip(made[-2:], drawn, strict=True):
            with checksums.replacing_checked(run.results, f"samples/{path.name}") as file, file.open("wb") as opened:
                draw(opened)
    return made


def spread(levels: Sequence[float]) -> list[float]:
    """The lowest, the middle and the highest of some levels."""
    ordered = sorted(levels)
    return sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]})


def middle(levels: Sequence[float]) -> float:
    """The level nearest to half of the highest: visible noise that does not hide the picture."""
    return min(levels, key=lambda level: abs(level - max(levels) / 2))


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
    return Sample(batch["ids"][0], gamma, clean, degraded, layers, [f"{task.metric(score):.1f}" for score in scores])


def _draw_strip(samples: Sequence[Sample], metric: str, file: Any) -> None:
    """One row per level: the middle frame clean, noisy, and after each layer (a selection if there are many)."""
    depth = len(samples[0].layers)
    layers = np.unique(np.linspace(0, depth - 1, min(depth, _MOST_LAYERS)).round().astype(int))
    columns = len(layers) + 2
    figure, axes = plt.subplots(
        len(samples), columns, figsize=(1.5 * columns, 1.75 * len(samples)), squeeze=False, constrained_layout=True
    )
    for row, sample in zip(axes, samples, strict=True):
        frame = len(sample.clean) // 2
        noisy, *by_layer = sample.metrics
        titles = ["clean", f"γ = {sample.gamma:g}: {metric} {noisy}"]
        titles += [f"layer {layer + 1}: {metric} {by_layer[layer]}" for layer in layers]
        pictures = (sample.clean, sample.noisy, *(sample.layers[layer] for layer in layers))
        for panel, frames, title in zip(row, pictures, titles, strict=True):
            panel.imshow(frames[frame], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            panel.set_title(title, fontsize=7)
            panel.set_axis_off()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    plt.close(figure)
    _fewer_greys(Image.open(drawn).convert("L")).save(file, format="png", optimize=True)


def _draw_moving(sample: Sample, file: Any) -> None:
    """Clean, noisy and the last layer's reconstruction side by side, as an animation."""
    parts = {"clean": sample.clean, f"noisy, γ = {sample.gamma:g}": sample.noisy, "reconstruction": sample.layers[-1]}
    # Pillow's default font has no Greek letters; this one is installed with matplotlib.
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 12)
    larger = -(-_SIDE // min(sample.clean.shape[1:]))
    height, width = (larger * side for side in sample.clean.shape[1:])
    pictures = []
    for time in range(len(sample.clean)):
        picture = Image.new("L", (len(parts) * (width + _GAP), height + _CAPTION), 255)
        draw = ImageDraw.Draw(picture)
        for column, (caption, frames) in enumerate(parts.items()):
            left = column * (width + _GAP)
            draw.text((left + 2, 2), caption, fill=0, font=font)
            frame = Image.fromarray(frames[time]).resize((width, height), Image.Resampling.NEAREST)
            picture.paste(frame, (left, _CAPTION))
        pictures.append(_fewer_greys(picture))
    first, *others = pictures
    first.save(file, format="gif", save_all=True, append_images=others, duration=_MILLISECONDS, loop=0)


def _fewer_greys(picture: Image.Image) -> Image.Image:
    step = 255 / (_GREYS - 1)
    return picture.point([round(round(grey / step) * step) for grey in range(256)]).quantize(_GREYS)
