"""Counts the floating-point operations of a model up to each layer, with PyTorch's own counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from cudt.data.loader import Batch
from cudt.models.base import LayeredModel


def _attention_flops(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> int:
    """FLOPs of an attention, given the shapes of its inputs."""
    return sdpa_flop_count(query, key, value)


#: PyTorch counts attention on a GPU, but not its kernel for CPUs, which computes the same products.
_CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


@dataclass(frozen=True)
class LayerFlops:
    """FLOPs of one example: products and sums in matrix products and attention, as its batch is
    padded.
    """

    leaving: Tensor
    """Of an example that leaves after layer l, (layers): layers 1 … l and the readout of each,
    which rules read."""
    full: float
    """Of all layers and the last readout, which is all that a model without early exits
    computes."""


class FlopCounts:
    """FLOPs by the shape of a batch, each counted once on the model as it runs."""

    def __init__(self, model: LayeredModel) -> None:
        self._model = model
        self._by_shape: dict[tuple[int, ...], LayerFlops] = {}

    def visit(self, signal: Tensor, batch: Batch, read: Callable[[Any], None]) -> LayerFlops:
        """Call `read` with the readout's answer at each layer; returns the FLOPs of one example of
        the batch.
        """
        shape = tuple(signal.shape)
        if shape not in self._by_shape:
            self._by_shape[shape] = self._counted(signal, batch, read)
        else:
            self._model.visit_layers(
                signal, batch, lambda state: read(self._model.readout(state, batch))
            )
        return self._by_shape[shape]

    def _counted(self, signal: Tensor, batch: Batch, read: Callable[[Any], None]) -> LayerFlops:
        totals: list[int] = []
        readouts: list[int] = []

        def count(state: Tensor) -> None:
            before = counter.get_total_flops()
            answer = self._model.readout(state, batch)
            totals.append(counter.get_total_flops())
            readouts.append(totals[-1] - before)
            read(answer)

        with FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION) as counter:
            self._model.visit_layers(signal, batch, count)
        leaving = torch.tensor(totals, dtype=torch.float64) / len(signal)
        return LayerFlops(leaving, (totals[-1] - sum(readouts[:-1])) / len(signal))
