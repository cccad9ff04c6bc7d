"""Texts and labels of a split, from files or from a dataset of the hub. Errors name the file and row."""

from __future__ import annotations

import glob
import re
import reprlib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudt.data.dataset_status import DatasetStatus
from cudt.data.hub import DEFAULT_ROOT, is_reachable
from cudt.data.readers import READERS, SEPARATORS
from cudt.utils.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

Label = int | str


@dataclass(frozen=True)
class Columns:
    """The columns of the texts of an example, and of its label if it has one."""

    text: tuple[str, ...]
    label: str | None
    optional: tuple[str, ...] = ()
    """Text columns that may be missing, in some rows or completely; their texts are empty then."""


@dataclass(frozen=True)
class Records:
    """The rows of a split, and the files they come from."""

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
    """A dataset of the hub, or its files below the data root in the hub's layout."""

    repository: str
    subset: str | None = None

    def read(self, split: str, columns: Columns, data_root: Path | None) -> Records:
        """A split: from `<root>/<name>/<subset>/<split>-*.parquet` if it exists, else from the hub's cache or the hub.

        `<root>/<owner>/<name>/` is preferred to `<root>/<name>/`, because several owners may use one name.
        """
        root = data_root or DEFAULT_ROOT
        if files := self._files(split, root):
            return read_files(files, columns)
        return self._from_hub(split, columns, self._base(root))

    def status(self, splits: Sequence[str], data_root: Path | None) -> DatasetStatus:
        """Which of the splits are below the data root; neither the hub nor its cache is searched."""
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
                f"{self._how_to_get(self._base(root))}; without it, cudt reads the hub's cache or downloads when needed"
            )
        name = f"{self.repository} {self.subset or ''}".strip()
        return DatasetStatus(name, self._base(root) / (self.subset or ""), parts, problem)

    def _files(self, split: str, root: Path) -> list[Path]:
        """The files of a split below the data root; empty if there are none."""
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
        import pandas as pd

        reachable = is_reachable()
        import datasets

        with _offline(not reachable):
            try:
                loaded = datasets.load_dataset(self.repository, self.subset, split=split)
            except Exception as error:  # the hub's libraries raise many kinds of errors
                raise UserError(self._unavailable(split, base, reachable, error)) from None
        frame = loaded.to_pandas()
        assert isinstance(frame, pd.DataFrame)
        return _pick(frame, f"{self.repository} {split}", columns)

    def _unavailable(self, split: str, base: Path, reachable: bool, error: Exception) -> str:
        # Network problems are OSErrors; a missing split is not. Even if the hub answered before, the connection can be
        # lost later.
        if not isinstance(error, OSError) or (reachable and not isinstance(error, ConnectionError)):
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            return f"dataset '{self.repository}', split {split}: {reason}"
        folder = base / (self.subset or "")
        return (
            f"dataset '{self.repository}': no {split}-*.parquet in {folder}, and the hub cannot be reached; with "
            f"network access, run {self._how_to_get(base)}"
        )


@contextmanager
def _offline(offline: bool) -> Iterator[None]:
    """Make the hub's libraries use their caches only, instead of retrying for minutes."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = (offline or one for one in before)
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def find_files(pattern: str, data_root: Path | None) -> list[Path]:
    """The files that a recipe names, below the data root or the current folder; `*` matches several."""
    root = data_root or DEFAULT_ROOT
    pattern = str(Path(pattern).expanduser()) if pattern.startswith("~") else pattern
    for folder in (root, Path()):
        # Literally first, because names can contain brackets.
        if (folder / pattern).is_file():
            return [folder / pattern]
        # Path.glob refuses absolute patterns.
        found = sorted(glob.glob(pattern, root_dir=folder, recursive=True))  # noqa: PTH207
        if files := [folder / name for name in found if (folder / name).is_file()]:
            return files
    raise UserError(f"data file '{pattern}' does not exist below {root} or the current folder")


def read_files(files: Sequence[Path], columns: Columns) -> Records:
    """The rows of all files, in order."""
    parts = []
    for file in files:
        reader = READERS.get(file.suffix.lower())
        if reader is None:
            raise UserError(f"{file}: unknown file type; expected one of {', '.join(READERS)}")
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
        raise UserError(
            f"{files[0].parent}: {len(files)} of {int(numbered[1])} files like {files[0].name}; download the rest"
        )


def _pick(frame: pd.DataFrame, source: str, columns: Columns) -> Records:
    """The columns of a table that are needed, with every cell checked."""
    for name in columns.optional:
        frame = _with_optional(frame, name)
    for name in (*columns.text, *([columns.label] if columns.label is not None else [])):
        if name not in frame.columns:
            there = [str(column) for column in frame.columns]
            listed = f"{did_you_mean(name, there) or ';'} its columns: {', '.join(there)}"
            if len(there) == 1 and source.endswith((".csv", ".tsv")):
                listed = f"; its only column: {there[0]} (cells are separated by {SEPARATORS})"
            raise UserError(f"{source}: no column '{name}'{listed}")
        if list(frame.columns).count(name) > 1:
            raise UserError(f"{source}: several columns are called '{name}'; rename all but one")
    texts = [_checked_texts(frame[name], name, source) for name in columns.text]
    labels: list[Label] = []
    if columns.label is not None:
        values = enumerate(frame[columns.label], 1)
        labels = [_label(value, f"{source}, row {row}", columns.label) for row, value in values]
    return Records(list(zip(*texts, strict=True)), labels, [(source, len(frame))])


def _with_optional(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The table with an empty text where the column has no value."""
    if name not in frame.columns:
        return frame.assign(**{name: ""})
    return frame.assign(**{name: [("" if _is_missing(value) else value) for value in frame[name]]})


def _checked_texts(values: pd.Series[Any], name: str, source: str) -> list[str]:
    texts = values.tolist()
    for row, text in enumerate(texts, 1):
        where = f"{source}, row {row}: column '{name}'"
        if _is_missing(text):
            raise UserError(f"{where} is empty; add a text or remove the row")
        if not isinstance(text, str):
            raise UserError(f"{where}: expected text, got {reprlib.repr(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # JSON can escape half of a surrogate pair, which tokenizers refuse.
            raise UserError(f"{where} has half a surrogate pair ({text[error.start]!r}); replace it") from None
    return texts


def _label(value: Any, where: str, name: str) -> Label:
    """A label as a word or an integer; text that is an integer becomes one, since csv files have text only."""
    if _is_missing(value) or (isinstance(value, str) and not value.strip()):
        raise UserError(f"{where}: column '{name}' is empty; add a label or remove the row")
    if isinstance(value, str):
        word = value.strip()
        return int(word) if re.fullmatch(r"0|-?[1-9][0-9]*", word) else word
    try:
        number = int(value)
        if number == value:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{where}: column '{name}': expected a word or an integer as label, got {reprlib.repr(value)}")


def _is_missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_scalar(value) and pd.isna(value))
