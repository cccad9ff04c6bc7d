"""The examples of somebody else's data set, from the batches that its collator makes, without their padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from cudt.data.stored_examples import LABELS, PIXELS, TOKENS, Kind, StoredExample
from cudt.tasks.base import IGNORED
from cudt.utils.errors import UserError

_MASK = "attention_mask"


def examples_of(batches: Iterable[Mapping[str, Any]], kind: Kind) -> Iterator[StoredExample]:
    """The examples of some batches, in order; those without a label that counts are left out."""
    for batch in batches:
        columns = _checked(batch, kind)
        for row in range(len(columns[LABELS])):
            example = _image(columns, row) if kind == "image" else _tokens(columns, row, kind)
            if _counts(example, kind):
                yield example


def _checked(batch: Mapping[str, Any], kind: Kind) -> dict[str, Tensor]:
    """The tensors of a batch; refuses what cudt cannot store."""
    main = PIXELS if kind == "image" else TOKENS
    columns = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    for name in (main, LABELS):
        if name not in columns:
            raise _error(f"the batches have no '{name}'")
    if columns[LABELS].is_floating_point() or columns[LABELS].ndim != (2 if kind in ("tokens", "causal") else 1):
        raise _error("the labels are not one class for each example or token (regression, several labels)")
    if kind == "image":
        return {name: columns[name] for name in (PIXELS, LABELS)}
    shape = columns[TOKENS].shape
    other = next((name for name, value in columns.items() if name != LABELS and value.shape != shape), None)
    if other is not None or len(columns) < len(batch):
        raise _error(f"'{other or next(name for name in batch if name not in columns)}' has no number for each token")
    return columns


def _image(columns: Mapping[str, Tensor], row: int) -> StoredExample:
    return StoredExample("", {PIXELS: columns[PIXELS][row].float().numpy()}, columns[LABELS][row : row + 1].numpy())


def _tokens(columns: Mapping[str, Tensor], row: int, kind: Kind) -> StoredExample:
    mask = columns[_MASK][row].bool() if _MASK in columns else torch.ones_like(columns[TOKENS][row], dtype=torch.bool)
    length = int(mask.sum())
    if not mask[:length].all():
        raise _error("the padding of a text is not after its tokens; let the tokenizer pad on the right")
    inputs = {name: value[row, :length].numpy() for name, value in columns.items() if name not in (LABELS, _MASK)}
    labels = columns[LABELS][row : row + 1] if kind == "sequence" else columns[LABELS][row, :length]
    return StoredExample("", inputs, labels.numpy())


def _counts(example: StoredExample, kind: Kind) -> bool:
    return bool((example.labels[1 if kind == "causal" else 0 :] != IGNORED).any())


def _error(reason: str) -> UserError:
    return UserError(f"report_to_cudt: {reason}, so cudt cannot store the data; leave report_to_cudt out")
