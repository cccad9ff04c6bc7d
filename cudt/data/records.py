"""Texts and labels of a split, from files or from a data set of the hub.

Whatever is wrong with a record is told with its file and row.
"""

from __future__ import annotations

import glob
import re
import reprlib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.data.dataset_status import DatasetStatus
from cudt.data.hub import DEFAULT_ROOT, is_reachable
from cudt.data.readers import READERS
from cudt.utils.errors import UserError, did_you_mean

Label = int | str


@dataclass(frozen=True)
class Columns:
    """Which columns hold the texts of an example and its label, if it has one."""

    text: tuple[str, ...]
    label: str | None
    optional: tuple[str, ...] = ()
    """Columns of texts that may be missing, in single rows or altogether; they are empty then."""


@dataclass(frozen=True)
class Records:
    """The rows of a split, and where each of them stands."""

    texts: list[tuple[str, ...]]
    labels: list[Label]
    sources: list[tuple[str, int]]
    """The files in order, each with its number of rows."""

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, row: int) -> str:
        """The file and row of a record, for error messages."""
        for source, rows in self.sources:
            if row < rows:
                return f"{source}, row {row + 1}"
            row -= rows
        raise IndexError(row)


@dataclass(frozen=True)
class HubSet:
    """A data set of the hub, or its files below the data root in the hub's own layout."""

    repository: str
    subset: str | None = None

    def read(self, split: str, columns: Columns, data_root: Path | None) -> Records:
        """A split: from `<root>/<name>/<subset>/<split>-*.parquet` where that is, else from the cache or the hub.

        `<root>/<owner>/<name>/` goes before `<root>/<name>/`, for sets of one name by several owners.
        """
        root = data_root or DEFAULT_ROOT
        if files := self._files(split, root):
            return read_files(files, columns)
        return self._from_hub(split, columns, self._base(root))

    def status(self, splits: Sequence[str], data_root: Path | None) -> DatasetStatus:
        """What is there of some splits below the data root; the hub is not asked."""
        root = data_root or DEFAULT_ROOT
        parts: dict[str, str] = {}
        problem = ""
        for split in splits:
            try:
                files = self._files(split, root)
            except UserError as error:
                files, problem = [], str(error)
            if files:
                parts[split] = f"{len(files)} file{'' if len(files) == 1 else 's'}"
        if len(parts) < len(splits) and not problem:
            problem = (
                f"{self._how_to_get(self._base(root))}; or the hub's cache, or the hub, is asked when it is needed"
            )
        name = f"{self.repository} {self.subset or ''}".strip()
        return DatasetStatus(name, self._base(root) / (self.subset or ""), parts, problem)

    def _files(self, split: str, root: Path) -> list[Path]:
        """The files of a split below the data root, if they are there."""
        *owner, name = self.repository.split("/")
        for base in (root.joinpath(*owner, name), self._base(root)):
            for folder in (base / self.subset,) if self.subset else (base, base / "data"):
                if files := _files_of_split(folder, split):
                    return files
        return []

    def _base(self, root: Path) -> Path:
        return root / self.repository.split("/")[-1]

    def _how_to_get(self, base: Path) -> str:
        only = f" --include '{self.subset}/*'" if self.subset else ""
        return f"`hf download {self.repository} --repo-type dataset{only} --local-dir {shlex.quote(str(base))}`"

    def _from_hub(self, split: str, columns: Columns, base: Path) -> Records:
        reachable = is_reachable()
        import datasets

        with _offline(not reachable):
            try:
                loaded = datasets.load_dataset(self.repository, self.subset, split=split)
            except Exception as error:  # the libraries of the hub raise many kinds
                raise UserError(self._unavailable(split, base, reachable, error)) from None
        frame = loaded.to_pandas()
        assert isinstance(frame, pd.DataFrame)
        return _pick(frame, f"{self.repository} {split}", columns)

    def _unavailable(self, split: str, base: Path, reachable: bool, error: Exception) -> str:
        # Where the network is the trouble it is an OSError; a split that is not there is none. A hub that answered at
        # first can be lost on the way.
        if not isinstance(error, OSError) or (reachable and not isinstance(error, ConnectionError)):
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            return f"data set '{self.repository}', split {split}: {reason}"
        folder = base / (self.subset or "")
        return (
            f"data set '{self.repository}': no {split}-*.parquet in {folder}, and the hub cannot be reached; where it "
            f"can, run {self._how_to_get(base)}"
        )


@contextmanager
def _offline(offline: bool) -> Iterator[None]:
    """Let the libraries of the hub look into their caches only, instead of retrying for minutes."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = (offline or one for one in before)
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def find_files(pattern: str, data_root: Path | None) -> list[Path]:
    """The files that a recipe names, below the data root or from here; `*` stands for any letters."""
    root = data_root or DEFAULT_ROOT
    pattern = str(Path(pattern).expanduser()) if pattern.startswith("~") else pattern
    for folder in (root, Path()):
        # As it stands first: brackets are letters in some names.
        if (folder / pattern).is_file():
            return [folder / pattern]
        # Path.glob refuses absolute patterns.
        found = sorted(glob.glob(pattern, root_dir=folder, recursive=True))  # noqa: PTH207
        if files := [folder / name for name in found if (folder / name).is_file()]:
            return files
    raise UserError(f"data file '{pattern}' does not exist, neither below {root} nor here")


def read_files(files: Sequence[Path], columns: Columns) -> Records:
    """The rows of all the files, in order."""
    parts = []
    for file in files:
        reader = READERS.get(file.suffix.lower())
        if reader is None:
            raise UserError(f"{file}: unknown kind of file; known: {', '.join(READERS)}")
        parts.append(_pick(reader(file), str(file), columns))
    return Records(
        [texts for part in parts for texts in part.texts],
        [label for part in parts for label in part.labels],
        [source for part in parts for source in part.sources],
    )


def _files_of_split(folder: Path, split: str) -> list[Path]:
    for pattern in (f"{split}-*.parquet", *(f"{split}{suffix}" for suffix in READERS)):
        if files := sorted(folder.glob(pattern)):
            _check_complete(files)
            return files
    return []


def _check_complete(files: Sequence[Path]) -> None:
    """Refuse part of a split: the hub numbers its files `train-00000-of-00003.parquet`."""
    numbered = re.search(r"-of-(\d+)\.parquet$", files[0].name)
    if numbered and int(numbered[1]) != len(files):
        raise UserError(f"{files[0].parent}: {len(files)} of {int(numbered[1])} files like {files[0].name} are there")


def _pick(frame: pd.DataFrame, source: str, columns: Columns) -> Records:
    """The columns that are wanted, every cell checked."""
    for name in columns.optional:
        frame = _with_optional(frame, name)
    for name in (*columns.text, *([columns.label] if columns.label is not None else [])):
        if name not in frame.columns:
            there = [str(column) for column in frame.columns]
            raise UserError(
                f"{source}: no column '{name}'{did_you_mean(name, there) or ';'} its columns: {', '.join(there)}"
            )
        if list(frame.columns).count(name) > 1:
            raise UserError(f"{source}: more than one column is called '{name}'")
    texts = [_checked_texts(frame[name], name, source) for name in columns.text]
    labels: list[Label] = []
    if columns.label is not None:
        values = enumerate(frame[columns.label], 1)
        labels = [_label(value, f"{source}, row {row}", columns.label) for row, value in values]
    return Records(list(zip(*texts, strict=True)), labels, [(source, len(frame))])


def _with_optional(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The table with an empty text wherever the column has none."""
    if name not in frame.columns:
        return frame.assign(**{name: ""})
    return frame.assign(**{name: [("" if _is_missing(value) else value) for value in frame[name]]})


def _checked_texts(values: pd.Series[Any], name: str, source: str) -> list[str]:
    texts = values.tolist()
    for row, text in enumerate(texts, 1):
        where = f"{source}, row {row}: column '{name}'"
        if not isinstance(text, str):
            what = "is empty" if _is_missing(text) else f"holds {reprlib.repr(text)}, not a text"
            raise UserError(f"{where} {what}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # JSON can spell what no file can hold, and no tokenizer takes it.
            raise UserError(f"{where} holds half a character ({text[error.start]!r}), not a text") from None
    return texts


def _label(value: Any, where: str, name: str) -> Label:
    """A label as a plain word or number; a whole number is one also where a file can hold words alone."""
    if _is_missing(value) or (isinstance(value, str) and not value.strip()):
        raise UserError(f"{where}: column '{name}' is empty")
    if isinstance(value, str):
        word = value.strip()
        return int(word) if re.fullmatch(r"0|-?[1-9][0-9]*", word) else word
    try:
        number = int(value)
        if number == value:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{where}: column '{name}' holds {reprlib.repr(value)}; a label is a word or a whole number")


def _is_missing(value: Any) -> bool:
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))
