"""Losses and scores of single examples in a temporary file: all layers at all noise levels would
fill the memory.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from cudt.models.layer_losses import Measurement

#: Losses in one block, a quarter of a MB of them. Data sets of fewer examples × layers are summed
#: at once.
BLOCK = 2**15
_BYTES = 8

Indices = np.ndarray[Any, np.dtype[np.int64]]


class MeasuredExamples(ABC):
    """Losses and scores of examples at every layer, read in blocks of examples.

    Results over all examples are sums over the blocks. All examples of a large data set do not fit
    into memory at every layer and noise level; see `Measurement` for those that do.
    """

    @abstractmethod
    def blocks(self) -> Iterator[Measurement]:
        """All examples once, always in the same order."""

    @property
    def layer_losses(self) -> Tensor:
        """f_1 … f_L: the weighted mean loss of each layer."""
        return self._sums[0] / self.total_weight

    @property
    def layer_scores(self) -> Tensor:
        """The weighted mean score of each layer."""
        return self._sums[1] / self.total_weight

    @property
    def input_score(self) -> float | None:
        """The weighted mean score of the noisy inputs; None for tasks where the input is no
        answer.
        """
        total = self._sums[2]
        return None if total is None else (total / self.total_weight).item()

    @property
    def total_weight(self) -> Tensor:
        """The sum of the examples' weights."""
        return self._sums[3]

    def last_layer(self) -> Measurement:
        """All examples at the last layer only."""
        parts = [
            # Copies: a view of the last layer would keep the whole block in memory.
            Measurement(
                one.losses[-1:].clone(), one.scores[-1:].clone(), one.weights.clone(), one.ids
            )
            for one in self.blocks()
        ]
        return Measurement.joined(parts)

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Weighted sums of losses, scores and scores of inputs, and the sum of the weights, in one
        pass.
        """
        losses, scores, inputs, weights = torch.zeros(()), torch.zeros(()), None, torch.zeros(())
        for block in self.blocks():
            losses = losses + block.losses @ block.weights
            scores = scores + block.scores @ block.weights
            weights = weights + block.weights.sum()
            if block.input_scores is not None:
                inputs = block.input_scores @ block.weights + (0.0 if inputs is None else inputs)
        return losses, scores, inputs, weights


class ExampleFile:
    """A file without a name in a folder, which ends with the process: one row of numbers for each
    example and level.

    A row has the losses and the scores of all layers, the weight, and the score of the input if it
    is an answer.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Not in the system's folder for temporary files, which is in memory on many machines.
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self._size = 0

    def __enter__(self) -> ExampleFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(
        self, batches: Iterable[Sequence[Measurement]], n_examples: int
    ) -> list[StoredMeasurement]:
        """Store the measurements of one pass over the examples: in each batch one for each
        level.
        """
        # Of full length from the start: what grows between large temporary arrays keeps their
        # memory from being freed.
        ids, done = [""] * n_examples, 0
        stored: list[StoredMeasurement] = []
        for levels in batches:
            for number, level in enumerate(levels):
                rows = _rows(level)
                if len(stored) <= number:
                    region = _Region(self._size, ids)
                    stored.append(
                        StoredMeasurement(self._file, (region,), len(level.losses), rows.shape[1])
                    )
                    self._size += n_examples * rows.shape[1] * _BYTES
                self._file.seek(stored[number].regions[0].start + done * rows.shape[1] * _BYTES)
                self._file.write(rows.data)
            ids[done : done + len(levels[0].ids)] = levels[0].ids
            done += len(levels[0].ids)
        return stored


@dataclass(frozen=True)
class _Region:
    """Rows that follow each other in the file, from a byte on."""

    start: int
    ids: list[str]


@dataclass(frozen=True)
class StoredMeasurement(MeasuredExamples):
    """Examples at one noise level, in an `ExampleFile`."""

    file: IO[bytes]
    regions: tuple[_Region, ...]
    n_layers: int
    width: int
    """Numbers in a row."""

    @classmethod
    def joined(cls, parts: Sequence[StoredMeasurement]) -> StoredMeasurement:
        """One measurement of the examples of all parts."""
        regions = tuple(region for part in parts for region in part.regions)
        return cls(parts[0].file, regions, parts[0].n_layers, parts[0].width)

    @property
    def ids(self) -> list[str]:
        """The ids of all examples."""
        return [one for region in self.regions for one in region.ids]

    def blocks(self) -> Iterator[Measurement]:
        """Blocks of a fixed number of examples, whatever the batches were."""
        ids, offsets = self.ids, self._offsets()
        for part in _slices(len(ids), max(1, BLOCK // self.n_layers)):
            yield self._read(offsets[part], ids[part])

    def grouped(self, names: Sequence[str]) -> MeasuredExamples:
        """One row for all examples of the same name; see `Measurement.grouped`."""
        return _Grouped(self, names)

    def take(self, rows: Indices, names: Sequence[str]) -> Measurement:
        """Some examples, by their indices, under other names."""
        return self._read(self._offsets()[rows], names)

    def _offsets(self) -> Indices:
        """The byte that each example's row starts at."""
        step = self.width * _BYTES
        return np.concatenate(
            [region.start + step * np.arange(len(region.ids)) for region in self.regions]
        )

    def _read(self, offsets: Indices, ids: Sequence[str]) -> Measurement:
        rows, step = np.empty((len(offsets), self.width)), self.width * _BYTES
        breaks: Indices = np.flatnonzero(np.diff(offsets) != step) + 1
        # Rows that follow each other are read at once.
        for start, end in zip([0, *breaks], [*breaks, len(offsets)], strict=True):
            self.file.seek(offsets[start])
            rows[start:end] = np.frombuffer(self.file.read((end - start) * step)).reshape(
                -1, self.width
            )
        columns = torch.from_numpy(np.ascontiguousarray(rows.T))
        losses, scores, (weights, *inputs) = columns.split(
            [self.n_layers, self.n_layers, self.width - 2 * self.n_layers]
        )
        return Measurement(losses, scores, weights, list(ids), inputs[0] if inputs else None)


class _Grouped(MeasuredExamples):
    """`Measurement.grouped` for examples in a file, group by group in the order of their names."""

    def __init__(self, stored: StoredMeasurement, names: Sequence[str]) -> None:
        self._stored, self._names = stored, np.array(names, dtype=object)
        self._order: Indices = np.array(sorted(range(len(names)), key=names.__getitem__))

    def blocks(self) -> Iterator[Measurement]:
        size = max(1, BLOCK // self._stored.n_layers)
        named = self._names[self._order]
        starts = np.flatnonzero(np.append(True, named[1:] != named[:-1]))
        start = 0
        while start < len(named):
            # Up to the last group that ends within the block, or the whole of one that is larger.
            ends: Indices = np.append(starts[starts > start], len(named))
            end = int(max(ends[ends <= start + size], default=ends[0]))
            names = named[start:end].tolist()
            yield self._stored.take(self._order[start:end], names).grouped(names)
            start = end


def _rows(measured: Measurement) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One row for each example."""
    inputs = [] if measured.input_scores is None else [measured.input_scores.unsqueeze(0)]
    columns: Tensor = torch.cat(
        [measured.losses, measured.scores, measured.weights.unsqueeze(0), *inputs]
    )
    return columns.double().numpy().T.copy()


def _slices(n: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, n, size))
