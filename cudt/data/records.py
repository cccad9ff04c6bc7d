"""Texts and labels of a split, from files or from a dataset of the hub. Errors name the file and
row.
"""

from __future__ import annotations

import glob
import re
import reprlib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cudt.data.dataset_status import DatasetStatus
from cudt.data.hub import DEFAULT_ROOT, is_reachable
from cudt.data.readers import READERS, Table, read_table
from cudt.data.sources import reading
from cudt.utils.errors import UserError, did_you_mean

Label = int | str
#: Columns that an error lists.
_LISTED = 20


@dataclass(frozen=True)
class Columns:
    """The columns of the texts of an example, and of its label if it has one."""

    text: tuple[str, ...]
    label: str | None
    optional: tuple[str, ...] = ()
    """Text columns that may be missing, in some rows or completely; their texts are empty then."""

    @property
    def needed(self) -> tuple[str, ...]:
        """All columns that are read."""
        return tuple(dict.fromkeys((*self.text, *([self.label] if self.label is not None else []))))


@dataclass(frozen=True)
class Records:
    """The rows of a split, and the files they come from."""

    texts: list[tuple[str, ...]]
    labels: list[Label]
    sources: list[tuple[str, int]]
    """The files in order, each with its number of rows."""
    commit: str | None = None
    """The commit of the hub's dataset that they come from; None for files, and where it is not
    known."""

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, row: int) -> str:
        """The file and row of a record, for error messages."""
        for source, rows in self.sources:
            if row < rows:
                return f"{source}, row {row + 1}"
            row -= rows
        raise IndexError(row)


def _is_commit(revision: str) -> bool:
    """Whether a revision is the full hash of a commit, which never changes; a branch or a tag
    can.
    """
    return re.fullmatch("[0-9a-f]{40}", revision) is not None


@dataclass(frozen=True)
class HubSet:
    """A dataset of the hub, or its files below the data root in the hub's layout."""

    repository: str
    subset: str | None = None
    revision: str | None = None
    """The version on the hub; None for the newest."""

    def at(self, revision: str | None) -> HubSet:
        """The same dataset in another version."""
        return replace(self, revision=revision)

    def read(self, split: str, columns: Columns, data_root: Path | None) -> Records:
        """A split: from `<root>/<name>/<subset>/<split>-*.parquet` if it exists, else from the
        hub's cache or the hub.

        `<root>/<owner>/<name>/` is preferred to `<root>/<name>/`, because several owners may use
        one name. With a revision, files are refused: they have no versions.
        """
        root = data_root or DEFAULT_ROOT
        if files := self._files(split, root):
            self.refuse_revision(files[0])
            return read_files(files, columns)
        if Path(self.repository).is_dir():
            self.refuse_revision(Path(self.repository))
        return self._from_hub(split, columns, self._base(root))

    def refuse_revision(self, source: Path) -> None:
        """Refuse a revision if the data are read from this machine."""
        if self.revision is not None:
            raise UserError(
                f"task.revision = '{self.revision}': dataset '{self.repository}' is read from "
                f"{source}, which has no "
                "versions; remove task.revision, or move the files away to read that version "
                "from the hub or its cache"
            )

    def status(self, splits: Sequence[str], data_root: Path | None) -> DatasetStatus:
        """Which of the splits are below the data root; neither the hub nor its cache is
        searched.
        """
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
            problem = f"{self._how_to_get(self._base(root))}; without it, cudt reads the hub's cache or downloads when needed"
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
        reachable = is_reachable()
        import datasets

        advice = "check its name"
        if not reachable:
            advice = f"the hub cannot be reached; with network access, run {self._how_to_get(base)}"
        with (
            reading(f"dataset '{self.repository}', split {split}", "cannot be read", advice),
            _offline(not reachable),
        ):
            loaded = datasets.load_dataset(
                self.repository, self.subset, split=split, revision=self.revision
            )
        commit = _commit_of(loaded)
        self._check_version(commit, reachable)
        cells = {name: loaded[name][:] for name in columns.needed if name in loaded.column_names}
        table = Table(loaded.column_names, cells, len(loaded))
        return replace(_pick(table, f"{self.repository} {split}", columns), commit=commit)

    def _check_version(self, commit: str | None, reachable: bool) -> None:
        """Refuse another version than the recipe's: without the hub, `datasets` reads whichever is
        in its cache.
        """
        if self.revision is None:
            return
        asked = self.revision if _is_commit(self.revision) else self._cached_commit()
        if commit != asked and not (reachable and asked is None):
            raise UserError(
                f"dataset '{self.repository}': revision '{self.revision}' is not in the cache, "
                "and the hub cannot be "
                "reached; run the command once with network access, or change task.revision"
            )

    def _cached_commit(self) -> str | None:
        """The commit that a branch or a tag was when it was last downloaded."""
        from huggingface_hub import try_to_load_from_cache

        # `datasets` reads the card first, to find the commit.
        card = try_to_load_from_cache(
            self.repository, "README.md", revision=self.revision, repo_type="dataset"
        )
        return Path(card).parent.name if isinstance(card, str) else None


def _commit_of(loaded: Any) -> str | None:
    """The commit of a dataset of the hub: the name of its folder in the cache of `datasets`."""
    folders = {Path(file["filename"]).parent.name for file in loaded.cache_files}
    return next((name for name in folders if _is_commit(name)), None)


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
    """The files that a recipe names, below the data root or the current folder; `*` matches
    several.
    """
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
    parts = [_pick(read_table(file, columns.needed), str(file), columns) for file in files]
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
            f"{files[0].parent}: {len(files)} of {int(numbered[1])} files like {files[0].name}; "
            "download the rest"
        )


def _pick(table: Table, source: str, columns: Columns) -> Records:
    """The columns of a table that are needed, with every cell checked."""
    for name in columns.needed:
        if table.names.count(name) > 1:
            raise UserError(f"{source}: several columns are called '{name}'; rename all but one")
        if name not in table.cells and name not in columns.optional:
            hint = did_you_mean(name, table.names) or ";"
            raise UserError(
                f"{source}: no column '{name}'{hint} its columns: "
                f"{', '.join(table.names[:_LISTED])}"
            )
    texts = [
        [_text(value, name, source, row, columns) for row, value in enumerate(table.cells[name], 1)]
        if name in table.cells
        else [""] * table.n_rows
        for name in columns.text
    ]
    labels: list[Label] = []
    if columns.label is not None:
        labels = [
            _label(value, columns.label, source, row)
            for row, value in enumerate(table.cells[columns.label], 1)
        ]
    return Records(list(zip(*texts, strict=True)), labels, [(source, table.n_rows)])


def _text(value: Any, name: str, source: str, row: int, columns: Columns) -> str:
    if isinstance(value, str):
        return value
    is_missing = value is None or value != value  # NaN
    if is_missing and name in columns.optional:
        return ""
    raise UserError(
        f"{source}, row {row}: column '{name}': expected text, got {reprlib.repr(value)}"
    )


def _label(value: Any, name: str, source: str, row: int) -> Label:
    """A label as a word or an integer; text that is an integer becomes one, since csv files have
    text only.
    """
    if isinstance(value, str) and (word := value.strip()):
        is_integer = (
            re.fullmatch(r"0|-?[1-9][0-9]{0,18}", word) is not None and abs(int(word)) < 2**63
        )
        return int(word) if is_integer else word
    try:
        number = int(value)
        # A larger one is an id, and tables of results could not hold it.
        if number == value and abs(number) < 2**63:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(
        f"{source}, row {row}: column '{name}': expected a word or an integer as label, got "
        f"{reprlib.repr(value)}"
    )
