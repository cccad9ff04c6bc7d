"""One pass over the examples of a split, by one process or by several: losses, scores and answers
of every example at every layer and noise level.

The main process leads and writes, the others compute their share of the batches. Results come back
batch by batch in the order of one process, so that tables are the same to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cudt.config.schema import Evaluation
from cudt.data.loader import ALL, Batch, Share, Workers, batches, n_batches
from cudt.models.layer_losses import LayerwiseLosses, with_noise
from cudt.noise import NoiseSource, TextNoise, noise_kind
from cudt.tasks.base import Split, Task
from cudt.utils import processes
from cudt.utils.text import Track

Result = TypeVar("Result")
#: Computes the results of a share of some batches, one for each; it is sent to other processes.
Work = Callable[[LayerwiseLosses, Share], Iterator[Result]]
#: The ids of a batch's examples, and their numbers, (levels, 2 + 4·layers, examples).
Measured = tuple[list[str], np.ndarray[Any, Any]]
#: What a layer has of each example; 14 bytes.
LAYER = {"loss": "float32", "score": "float32", "confidence": "float32", "predicted": "int16"}


@dataclass(frozen=True)
class Pass:
    """The examples of a split under one kind of noise, at several levels of one draw."""

    asked: Evaluation
    workers: Workers
    split: Split
    noise: NoiseSource
    levels: Sequence[float]

    @property
    def is_in_text(self) -> bool:
        """Whether the noise is in the source texts, of which each level is read on its own."""
        return isinstance(noise_kind(self.noise.kind), TextNoise)

    def examples(self, task: Task) -> Sequence[Any]:
        """The examples, of noise in texts at the first level."""
        kind = noise_kind(self.noise.kind)
        if isinstance(kind, TextNoise):
            return task.corrupted(self.split, kind, self.levels[0], int(self.noise.seed))
        return task.examples(self.split)

    def total(self, task: Task) -> int:
        """The number of batches."""
        return n_batches(task.examples(self.split), self.asked.batch_size)

    @torch.no_grad()
    def __call__(self, layerwise: LayerwiseLosses, share: Share) -> Iterator[Measured]:
        """The measurements of each batch of one process."""
        device, size = next(layerwise.eval().parameters()).device, self.asked.batch_size
        task, examples = layerwise.task, self.examples(layerwise.task)
        found = batches(task, examples, size, device, self.workers, share)
        is_drawn = any(self.levels) and not self.is_in_text
        for batch, drawn in with_noise(layerwise.model, found, self.noise if is_drawn else None):
            at_levels = []
            for level in self.levels:
                noise = level * drawn if drawn is not None and level else None
                with torch.autocast(
                    device.type, torch.bfloat16, enabled=self.asked.precision == "bf16"
                ):
                    at_levels.append(_rows(layerwise, batch, noise))
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
    rows = [weights, task.scores(noisy.double(), batch) if task.input_is_answer else nothing]
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


def measure(
    one: Pass, layerwise: LayerwiseLosses, track: Track, what: str
) -> dict[float, pd.DataFrame]:
    """Every example at each level, sorted by id: columns id, weight, input (the score of the noisy
    input), loss_1, score_1, confidence_1, predicted_1, loss_2, … Call it inside `led_by_main`.
    """
    total = one.total(layerwise.task)
    passes = [replace(one, levels=[g]) for g in one.levels] if one.is_in_text else [one]
    measured: dict[float, pd.DataFrame] = {}
    for single in passes:
        names, arrays = zip(*track(results(single, layerwise, total), total, what), strict=True)
        ids, values = list(itertools.chain(*names)), np.concatenate(arrays, axis=-1)
        for level, rows in zip(single.levels, values, strict=True):
            columns = {"id": ids, "weight": rows[0], "input": rows[1]}
            for number, row in enumerate(rows[2:]):
                name = [*LAYER][number % len(LAYER)]
                known = np.nan_to_num(row, nan=-1) if name == "predicted" else row
                columns[f"{name}_{number // len(LAYER) + 1}"] = known.astype(LAYER[name])
            measured[level] = pd.DataFrame(columns).sort_values("id", ignore_index=True)
    return measured


# ---------------------------------------------------------------- several processes


def results(work: Work[Result], layerwise: LayerwiseLosses, total: int) -> Iterator[Result]:
    """The results of all `total` batches, in order; call it inside `led_by_main`."""
    if processes.count() == 1:
        return work(layerwise, ALL)
    processes.from_main(work)
    return itertools.islice(_rounds(work, layerwise), total)


@contextmanager
def led_by_main(layerwise: LayerwiseLosses) -> Iterator[bool]:
    """Whether this process leads, that is, evaluates and writes. The others have helped when they
    get the answer.
    """
    if not processes.is_main_process():
        while (work := processes.from_main(None)) is not None:
            for _ in _rounds(work, layerwise):
                pass
    yield processes.is_main_process()
    # Not after an error: the others may be at work, and end with this process.
    if processes.is_main_process():
        processes.from_main(None)


def _rounds(work: Work[Result], layerwise: LayerwiseLosses) -> Iterator[Result]:
    """The results of all processes, in rounds of one batch each; none but in the main one."""
    for mine in work(layerwise, (processes.index(), processes.count())):
        everyones = processes.gathered(mine)
        if processes.is_main_process():
            yield from everyones
