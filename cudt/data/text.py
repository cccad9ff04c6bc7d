"""Texts and labels from files or from a dataset of the Hugging Face hub."""

from __future__ import annotations

import glob
import json
import re
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.data import hub
from cudt.data.hub import DEFAULT_ROOT, reading
from cudt.utils.errors import UserError
from cudt.utils.text import did_you_mean, shown

Label = int | str
#: Cells stay as they are: "NA" is a word, and "01" is no number.
_CSV: Any = partial(pd.read_csv, dtype=str, na_filter=False, index_col=False)
_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": _CSV,
    ".tsv": partial(_CSV, sep="\t"),
    ".json": lambda file: pd.DataFrame(json.loads(file.read_bytes())),
    ".jsonl": lambda file: pd.DataFrame(map(json.loads, file.read_bytes().strip().splitlines())),
    ".parquet": pd.read_parquet,
}


@dataclass(frozen=True)
class Columns:
    """The columns of the texts of an example, and of its label if it has one."""

    text: tuple[str, ...]
    label: str | None = None
    optional: tuple[str, ...] = ()
    """Text columns that may be missing, in some rows or completely; their texts are empty then."""


@dataclass(frozen=True)
class Records:
    """The rows of a split."""

    texts: list[tuple[str, ...]]
    labels: list[Label]


@dataclass(frozen=True)
class Source:
    """Your own files, or a dataset of the hub, which may also be parquet files below the data root
    in the hub's folders.
    """

    repository: str | None = None
    """The dataset of the hub; None for files."""
    subset: str | None = None
    revision: str | None = None
    """The version on the hub, for which files below the data root are not read."""

    def read(self, split: str, columns: Columns, data_root: Path | None) -> Records:
        """A split from its files, else from the hub's cache or the hub; without a repository, the
        files that `split` names.
        """
        if files := self._files(split, data_root):
            return read_files(files, columns)
        import datasets  # takes long

        source, offline = f"dataset '{self.repository}', split {split}", not hub.is_reachable()
        datasets.config.HF_HUB_OFFLINE = offline
        with reading(source, f"check its name, or {self._how_to_get(data_root)}"):
            table = datasets.load_dataset(
                self.repository, self.subset, split=split, revision=self.revision
            )
            # The name of the dataset's folder in the cache.
            commit = Path(table.cache_files[0]["filename"]).parent.name
            # Without the hub, `datasets` reads the version that it read last.
            if offline and self.revision not in (None, commit):
                raise ValueError(f"the cache has commit {commit}, not '{self.revision}'")
        return _picked(table.to_pandas(), source, columns)

    def find(self, split: str, data_root: Path | None) -> None:
        """Refuse a split if neither its files nor the hub nor its cache is here."""
        if self._files(split, data_root) or hub.is_reachable():
            return
        import datasets  # takes long

        cache = Path(datasets.config.HF_DATASETS_CACHE)
        if not (cache / str(self.repository).replace("/", "___")).is_dir():
            raise UserError(
                f"dataset {self.repository}: split '{split}' is not on this machine; "
                f"{self._how_to_get(data_root)}"
            )

    def _folder(self, data_root: Path | None) -> Path:
        return (data_root or DEFAULT_ROOT) / str(self.repository).split("/")[-1]

    def _files(self, split: str, data_root: Path | None) -> list[Path]:
        """Your own files, or those of a split: `glue/mnli/train-00000-of-00001.parquet`."""
        if self.repository is None:
            return find_files(split, data_root)
        folder = self._folder(data_root) / (self.subset or "data")
        return sorted(folder.glob(f"{split}-*.parquet")) if self.revision is None else []

    def _how_to_get(self, data_root: Path | None) -> str:
        only = f" --include '{self.subset}/*'" if self.subset else ""
        where = f"--local-dir {shlex.quote(str(self._folder(data_root)))}"
        if self.revision is not None:
            where = f"--revision {self.revision}"
        command = f"hf download {self.repository} --repo-type dataset{only} {where}"
        return f"with network access, run `{command}`"


def find_files(pattern: str, data_root: Path | None) -> list[Path]:
    """The files that a recipe names, below the data root or the current folder; `*` matches
    several.
    """
    root = data_root or DEFAULT_ROOT
    for folder in (root, Path()):
        # Literally first, because names can contain brackets.
        if (file := folder / Path(pattern).expanduser()).is_file():
            return [file]
        if found := sorted(map(Path, glob.glob(str(file), recursive=True))):  # noqa: PTH207
            return found
    raise UserError(f"data file '{pattern}' does not exist below {root} or the current folder")


def read_files(files: Sequence[Path], columns: Columns) -> Records:
    """The rows of all files, in order."""
    table = pd.concat([_table(file) for file in files], ignore_index=True)
    return _picked(table, ", ".join(map(str, files)), columns)


def _table(file: Path) -> pd.DataFrame:
    if file.suffix.lower() not in _READERS:
        raise UserError(f"{file}: unknown file type; expected one of {', '.join(_READERS)}")
    with reading(file, "check the file; texts are UTF-8"), warnings.catch_warnings():
        # A first row that is longer than the header; pandas refuses later ones by itself.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return _READERS[file.suffix.lower()](file)


def _picked(table: pd.DataFrame, source: str, columns: Columns) -> Records:
    """The texts and labels of a table."""
    for name in columns.optional:
        table[name] = table[name].fillna("") if name in table else ""
    texts = [_column(table, source, name, "text") for name in columns.text]
    labels = [] if columns.label is None else _column(table, source, columns.label, "label")
    return Records(list(zip(*texts, strict=True)), labels)


def _column(table: pd.DataFrame, source: str, name: str, kind: str) -> list[Any]:
    """The cells of a column; a UserError for one that is neither text nor a label."""
    if name not in table:
        hint = did_you_mean(name, table.columns) or ";"
        names = ", ".join(map(str, table.columns))
        raise UserError(f"{source}: no column '{name}'{hint} its columns: {names}")
    cells = table[name].tolist()
    if kind == "label":
        read = [_label(cell) for cell in cells]
    else:
        read = [cell if isinstance(cell, str) else None for cell in cells]
    if None in read:
        row = read.index(None)
        found = f"row {row + 1}: column '{name}': {shown(cells[row])}"
        raise UserError(f"{source}, {found} is no {kind}")
    return read


def _label(cell: Any) -> Label | None:
    """A word or an integer; text that is an integer becomes one, since csv files have text only."""
    if isinstance(cell, str):
        word = cell.strip()
        return int(word) if re.fullmatch(r"0|-?[1-9][0-9]*", word) else word or None
    return int(cell) if isinstance(cell, int | float) and cell == cell // 1 else None
