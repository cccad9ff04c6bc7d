"""Computes the layers of a model of transformers for some rows of its batch only.

The model's own code runs unchanged and sees a full batch. Before a layer, the rows that are not needed are taken out of
its inputs; after it, its output is put back into the full state, where the other rows keep their last values. So
whatever a family does between its layers still works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cudt.models.anatomy import first, with_first

ArgumentPath = tuple[int | str, ...]
"""Where a tensor is in the arguments of a call: (0, position, …) or (1, name, …)."""


class Narrowing:
    """The rows of a batch that one forward pass still needs."""

    def __init__(self, shared: frozenset[ArgumentPath]) -> None:
        """`shared` is what `shared_inputs` found."""
        self._shared = shared
        self._rows: Tensor | None = None
        self._full = torch.empty(0)

    def inputs(self, args: Any, kwargs: Any) -> Any:
        """A layer's arguments with the needed rows only; None if all rows are needed."""
        return None if self._rows is None else _mapped((args, kwargs), self._taken)

    def _taken(self, path: ArgumentPath, tensor: Tensor) -> Tensor:
        has_rows = _length(tensor) == len(self._full) and path not in self._shared
        return tensor[self._rows] if has_rows else tensor

    def output(self, output: Any, needed: Tensor | None) -> Any:
        """A layer's output for the full batch, or None if it has all rows; `needed` are the rows for later layers."""
        was_narrow = self._rows is not None
        if self._rows is not None:
            self._full = self._full.index_copy(0, self._rows, first(output))
            self._rows = self._rows if needed is None else self._rows[needed]
        elif needed is not None:
            self._full, self._rows = first(output), needed
        return with_first(output, self._full) if was_narrow else None


def shared_inputs(layers: Iterable[nn.Module], run: Callable[[int], Any]) -> frozenset[ArgumentPath] | None:
    """The inputs of layers that do not have a row for each example, such as embeddings of positions.

    `run(n)` runs the model on n examples. Two batches of different sizes are needed, because one size can mislead: a
    text may have as many tokens as its batch has examples. None if the layers' states do not have a row for each
    example, so that they cannot be narrowed.
    """
    layers = list(dict.fromkeys(layers))
    small, large = (_lengths(layers, partial(run, size)) for size in (2, 3))
    if any(pair != (2, 3) for pair in zip(small[0], large[0], strict=True)):
        return None
    return frozenset(path for path, length in small[1].items() if (length, large[1].get(path)) != (2, 3))


def _lengths(layers: Iterable[nn.Module], run: Callable[[], Any]) -> tuple[list[int], dict[ArgumentPath, int]]:
    """The lengths of the states of all layers, and those of all tensors in their inputs."""
    states: list[int] = []
    inputs: dict[ArgumentPath, int] = {}

    def watch(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        states.append(_length(first(output)))
        _mapped((args, kwargs), lambda path, tensor: inputs.update({path: _length(tensor)}))

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(watch, with_kwargs=True).remove)
        run()
    return states, inputs


def _length(tensor: Tensor) -> int:
    return len(tensor) if tensor.dim() else 0


def _mapped(value: Any, change: Callable[[ArgumentPath, Tensor], Any], path: ArgumentPath = ()) -> Any:
    """The value with every tensor in its tuples, lists and dictionaries changed."""
    if isinstance(value, Tensor):
        return change(path, value)
    if isinstance(value, dict):
        return {key: _mapped(one, change, (*path, key)) for key, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_mapped(one, change, (*path, index)) for index, one in enumerate(value))
    return value
