"""One pass over the examples of a split: losses, scores and answers of every example at every layer
and noise level.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cudt.config.schema import Recipe
from cudt.data.loader import Batch, batches, n_batches
from cudt.models.layer_losses import LayerwiseLosses, draw_noise
from cudt.noise import NoiseSource, TextNoise, noise_kind
from cudt.tasks.base import Split
from cudt.utils.device import sent
from cudt.utils.text import Track

#: What a layer has of each example; 14 bytes.
LAYER = {"loss": "float32", "score": "float32", "confidence": "float32", "predicted": "int16"}


def measure(
    layerwise: LayerwiseLosses,
    settings: Recipe,
    split: Split,
    noise: NoiseSource,
    levels: Sequence[float],
    track: Track,
    what: str,
) -> dict[float, pd.DataFrame]:
    """Every example at each level, sorted by id: columns id, weight, input (the score of the noisy
    input), loss_1, score_1, confidence_1, predicted_1, loss_2, …
    """
    task, kind, size = layerwise.task, noise_kind(noise.kind), settings.evaluation.batch_size
    total = n_batches(task.examples(split), size)
    if not isinstance(kind, TextNoise):
        found = _batches(layerwise, settings, task.examples(split), noise, levels)
        return _tables(track(found, total, what), levels)
    measured: dict[float, pd.DataFrame] = {}
    for level in levels:
        # Noise in texts comes before the tokenizer, so each level is read on its own.
        examples = task.corrupted(split, kind, level, int(noise.seed))
        found = _batches(layerwise, settings, examples, None, [0.0])
        measured |= _tables(track(found, total, what), [level])
    return measured


@torch.no_grad()
def _batches(
    layerwise: LayerwiseLosses,
    settings: Recipe,
    examples: Sequence[Any],
    noise: NoiseSource | None,
    levels: Sequence[float],
) -> Iterator[tuple[list[str], np.ndarray[Any, Any]]]:
    """The ids of each batch, and its numbers, (levels, 2 + 4·layers, examples)."""
    device, how = next(layerwise.eval().parameters()).device, settings.evaluation
    found = batches(layerwise.task, examples, how.batch_size, device, settings.loading.workers)
    is_bf16 = how.precision == "bf16"
    for batch in found:
        at_levels, drawn = [], None
        if noise is not None and any(levels):
            drawn = sent(draw_noise(batch, *layerwise.model.signal(batch), noise), device)
        for level in levels:
            with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
                scaled = level * drawn if drawn is not None and level else None
                at_levels.append(_rows(layerwise, batch, scaled))
        # The device is waited for once per batch.
        yield [*batch["ids"]], torch.stack(at_levels).float().cpu().numpy()


def _rows(layerwise: LayerwiseLosses, batch: Batch, noise: Tensor | None) -> Tensor:
    """Weight, score of the noisy input, and for each layer loss, score, confidence and prediction:
    a row each, (2 + 4·layers, examples), in double precision.
    """
    model, task = layerwise.model, layerwise.task
    signal = model.signal(batch)[0]
    noisy = signal if noise is None else signal + noise
    nothing = torch.full((len(batch["ids"]),), torch.nan, dtype=torch.double, device=noisy.device)
    weights = task.weights(batch).to(nothing)
    rows = [weights, task.scores(noisy.double(), batch) if task.has_pictures else nothing]
    probabilities = getattr(task, "probabilities", None)

    def read(state: Tensor) -> None:
        answer = model.readout(state, batch).double()
        rows.extend(task.judge(answer, batch))
        if probabilities is None:
            rows.extend([nothing, nothing])
        else:
            confidence, predicted = probabilities(answer).max(-1)
            rows.extend([confidence, predicted.double()])

    model.visit_layers(noisy, batch, read)
    return torch.stack(rows)


def _tables(found: Any, levels: Sequence[float]) -> dict[float, pd.DataFrame]:
    """The numbers of all batches as a table for each level."""
    names, arrays = zip(*found, strict=True)
    ids, values = list(itertools.chain(*names)), np.concatenate(arrays, axis=-1)
    tables = {}
    for level, rows in zip(levels, values, strict=True):
        columns = {"id": ids, "weight": rows[0], "input": rows[1]}
        for number, row in enumerate(rows[2:]):
            name = [*LAYER][number % len(LAYER)]
            known = np.nan_to_num(row, nan=-1) if name == "predicted" else row
            columns[f"{name}_{number // len(LAYER) + 1}"] = known.astype(LAYER[name])
        tables[level] = pd.DataFrame(columns).sort_values("id", ignore_index=True)
    return tables
