"""Examples of models of transformers in parquet files, one row for each:

    input_ids, …    the tokens of an example, and other columns with a number for each of them
    pixel_values    instead of tokens: the numbers of an image, with their shape in the column `shape`
    labels          a class (sequence, image); a class for each token (tokens); or the tokens themselves (causal)

A label of −100 does not count. There is no padding, so there is no attention_mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cudt.data.arrays import read_arrays
from cudt.utils.errors import UserError
from cudt.utils.files import replacing

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Kind = Literal["sequence", "image", "tokens", "causal"]
TOKENS, PIXELS, SHAPE, LABELS = "input_ids", "pixel_values", "shape", "labels"
#: The label of a token that is not counted, as in transformers.
_IGNORED = -100
#: Rows that are written at a time.
_ROWS = 1000


@dataclass(frozen=True)
class StoredExample:
    """One example: its tokens and other numbers by position, or its image; and its label or labels."""

    id: str
    inputs: dict[str, Array]
    labels: Array

    @property
    def length(self) -> int:
        """The number of tokens, or of an image's channels."""
        return len(next(iter(self.inputs.values())))


def read_examples(
    file: Path, split: str, kind: Kind, n_classes: int | None, limit: int | None = None
) -> list[StoredExample]:
    """The first examples of a file, or all; the id of each is the split and its row."""
    columns = read_arrays(file)
    needed = (PIXELS, SHAPE, LABELS) if kind == "image" else (TOKENS, LABELS)
    for name in needed:
        if name not in columns:
            raise UserError(f"{file}: no column '{name}', which examples of kind {kind} have")
    if not columns[LABELS]:
        raise UserError(f"{file}: no examples; add some")
    examples = []
    for number in range(len(columns[LABELS]))[:limit]:
        row = {name: values[number] for name, values in columns.items()}
        try:
            found = _image(row) if kind == "image" else _tokens(row)
            labels = _labels(row[LABELS], kind, len(row[needed[0]]), n_classes)
        except ValueError as error:
            raise UserError(f"{file}, row {number + 1}: {error}") from None
        examples.append(StoredExample(f"{split}-{number}", found, labels))
    return examples


def _image(row: dict[str, Array]) -> dict[str, Array]:
    import numpy as np

    pixels: Array = row[PIXELS].astype(np.float32)
    shape = row[SHAPE].astype(int).tolist()
    if len(shape) != 3 or min(shape) < 1 or int(np.prod(shape)) != len(pixels):
        raise ValueError(f"{len(pixels)} numbers are no image of {shape} (channels, height, width); check the row")
    if not np.isfinite(pixels).all():
        raise ValueError("the image has NaN or infinite values; replace them")
    return {PIXELS: pixels.reshape(shape)}


def _tokens(row: dict[str, Array]) -> dict[str, Array]:
    length, inputs = len(row[TOKENS]), {}
    for name, values in row.items():
        if name == LABELS:
            continue
        if len(values) != length:
            raise ValueError(f"column '{name}' has {len(values)} numbers, and {TOKENS} {length}; they must agree")
        inputs[name] = _integers(name, values)
    if not length or inputs[TOKENS].min() < 0:
        raise ValueError("an example has at least one token, and tokens are not negative; remove the row")
    return inputs


def _labels(values: Array, kind: Kind, length: int, n_classes: int | None) -> Array:
    labels = _integers(LABELS, values)
    expected = length if kind in ("tokens", "causal") else 1
    if len(labels) != expected:
        raise ValueError(f"{len(labels)} labels, expected {expected}; check the row")
    counted = labels[labels != _IGNORED] if kind in ("tokens", "causal") else labels
    if len(counted) and not (counted.min() >= 0 and (n_classes is None or counted.max() < n_classes)):
        most = "" if n_classes is None else f" to {n_classes - 1}"
        raise ValueError(f"a label is not a number from 0{most}; set the number of classes, or check the row")
    return labels


def _integers(name: str, values: Array) -> Array:
    import numpy as np

    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"column '{name}': expected integers, got {values.dtype}; check the row")
    return values.astype(np.int64)


def write_examples(file: Path, examples: Iterable[StoredExample], kind: Kind) -> int:
    """Write examples into a parquet file and return their number; they are not all in memory at once."""
    import itertools

    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    count, remaining = 0, iter(examples)
    with replacing(file) as temporary:
        writer = None
        while chunk := list(itertools.islice(remaining, _ROWS)):
            table = pa.table(_columns(chunk, kind))
            writer = writer or ParquetWriter(temporary, table.schema)
            writer.write_table(table)
            count += len(chunk)
        if writer is None:
            raise UserError(f"{file}: no examples to store; add some")
        writer.close()
    return count


def _columns(examples: list[StoredExample], kind: Kind) -> dict[str, Any]:
    """Each column as lists of numbers; labels of whole examples are single numbers."""
    columns: dict[str, Any] = {
        name: [example.inputs[name].reshape(-1) for example in examples] for name in examples[0].inputs
    }
    if kind == "image":
        columns[SHAPE] = [list(example.inputs[PIXELS].shape) for example in examples]
    single = kind in ("sequence", "image")
    columns[LABELS] = [int(one.labels[0]) if single else one.labels for one in examples]
    return columns
