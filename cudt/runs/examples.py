"""examples.parquet: the last layer's score of every test example at every level. As text it would
be large and slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cudt.runs import checksums
from cudt.utils.reading import shown

if TYPE_CHECKING:
    import pandas as pd

FILE = "examples.parquet"
#: The columns and their types.
EXAMPLES = {
    "perturbation": "str",
    "gamma": "float64",
    "seed": "int64",
    "id": "str",
    "weight": "float32",
    "score": "float64",
}
#: Rows of a piece: what is converted at once takes several times the memory of its result.
PIECE = 2**12
#: Rows that are written, and read, at once.
_ROWS = 2**14
#: Gives the id, weight and score of the examples of a part, in the order of their ids, at most
#: `PIECE` at a time.
Pieces = Callable[[], Iterable["pd.DataFrame"]]


class Part(NamedTuple):
    """What the rows of the file have in common that are measured together."""

    perturbation: str
    gamma: float
    seed: int


def read_examples(folder: Path, kind: str | None = None) -> pd.DataFrame:
    """The scores of single test examples, under one kind of noise or all; empty if there is no
    file.
    """
    import pandas as pd

    if not _exists(folder):
        return pd.DataFrame(columns=list(EXAMPLES)).astype(EXAMPLES)
    return _read(folder, None if kind is None else [("perturbation", "==", kind)])


def check(folder: Path) -> None:
    """Refuse a file that is not as it was written; without a digest of it, one that cannot be
    read.
    """
    if _exists(folder) and FILE not in checksums.recorded(folder):
        _read(folder, [("perturbation", "==", "")])


def merge_examples(folder: Path, parts: Mapping[Part, Pieces], keys: Sequence[str]) -> None:
    """Add scores; they replace all rows with the same keys. The file does not depend on the order
    of the parts.

    `parts` are called one after the other, and read piece by piece, so that not all rows are in
    memory.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    replaced = {_key(part, keys) for part in parts}
    kept = {part for part in _stored(folder) if _key(part, keys) not in replaced}
    with checksums.replacing_checked(folder, FILE) as temporary:
        writer = None
        for rows in _in_order(folder, parts, kept):
            table = pa.Table.from_pandas(rows, preserve_index=False)
            # Dictionaries of ids and scores would only take memory: most values are there once.
            options = {"compression": "zstd", "use_dictionary": list(Part._fields)}
            writer = writer or pq.ParquetWriter(temporary, table.schema, **options)
            writer.write_table(table)
            # pyarrow keeps what it frees, and the next rows do not fit into it.
            pa.default_memory_pool().release_unused()
        if writer is not None:
            writer.close()


def _in_order(
    folder: Path, parts: Mapping[Part, Pieces], kept: set[Part]
) -> Iterator[pd.DataFrame]:
    """All rows of old and new parts, sorted, at most `_ROWS` at a time."""
    import pandas as pd

    pending: list[pd.DataFrame] = []
    for part in sorted({*kept, *parts}):
        for piece in parts[part]() if part in parts else _pieces_of(folder, part):
            if pending and sum(map(len, pending)) + len(piece) > _ROWS:
                yield pd.concat(pending, ignore_index=True)
                pending.clear()
            pending.append(piece.assign(**part._asdict())[list(EXAMPLES)].astype(EXAMPLES))
    if pending:
        yield pd.concat(pending, ignore_index=True)


def _pieces_of(folder: Path, part: Part) -> Iterator[pd.DataFrame]:
    """The rows of a part that is in the file."""
    rows = _read(folder, [(name, "==", value) for name, value in part._asdict().items()])
    return (rows[start : start + PIECE] for start in range(0, len(rows), PIECE))


def _stored(folder: Path) -> set[Part]:
    """The parts in the file."""
    import pyarrow.parquet as pq

    found: set[Part] = set()
    if _exists(folder):
        # Names whose error is that of a damaged file.
        _read(folder, [("perturbation", "==", "")])
        for batch in pq.ParquetFile(folder / FILE).iter_batches(_ROWS, columns=list(Part._fields)):
            found |= {
                Part(*row)
                for row in batch.to_pandas().drop_duplicates().itertuples(index=False, name=None)
            }
    return found


def _key(part: Part, keys: Sequence[str]) -> tuple[object, ...]:
    return tuple(getattr(part, key) for key in keys)


def _exists(folder: Path) -> bool:
    """Whether there is a file; a DamagedFileError if it is not as it was written."""
    try:
        checksums.check_file(folder, FILE)
    except FileNotFoundError:
        return False
    return True


def _read(folder: Path, filters: list[tuple[str, str, object]] | None) -> pd.DataFrame:
    """The rows of a file that exists."""
    import pandas as pd

    try:
        table = pd.read_parquet(folder / FILE, filters=filters)
        if list(table.columns) != list(EXAMPLES):
            raise ValueError(
                f"expected columns {', '.join(EXAMPLES)}; found {', '.join(table.columns)}"
            )
        return table.astype(EXAMPLES)
    except MemoryError:
        raise
    except Exception as error:  # pyarrow raises many kinds of exceptions for a damaged file
        raise checksums.damage(folder, FILE, shown(str(error))) from None
