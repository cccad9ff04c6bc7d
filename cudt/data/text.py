"""Texts and labels from files or from a dataset of the hub, read by the library `datasets`, and
their tokens.
"""

from __future__ import annotations

import glob
import hashlib
import re
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd

from cudt.data import hub
from cudt.data.hub import DEFAULT_ROOT, Status, reading
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import cache_folder
from cudt.utils.text import did_you_mean, shown

Label = int | str
#: "NA" is a word, and a cell too many must not move the others.
_CSV = {"keep_default_na": False, "na_filter": False, "index_col": False}
#: The reader of `datasets` for each type of file.
_READERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".csv": ("csv", {**_CSV, "sep": ","}),
    ".tsv": ("csv", {**_CSV, "sep": "\t"}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".parquet": ("parquet", {}),
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
    source: str
    """The files or the dataset, for errors."""
    commit: str | None = None
    """The commit of the hub's dataset that they come from; None for files."""


@dataclass(frozen=True)
class HubSet:
    """A dataset of the hub, or its files below the data root in the hub's layout."""

    repository: str
    subset: str | None = None
    revision: str | None = None
    """The version on the hub; None for the newest."""

    def read(self, split: str, columns: Columns, data_root: Path | None) -> Records:
        """A split from its files below the data root, else from the hub's cache or the hub."""
        if files := self.files(split, data_root):
            self.refuse_revision(files[0])
            return read_files(files, columns)
        source, offline = f"dataset '{self.repository}', split {split}", not hub.is_reachable()
        datasets.config.HF_HUB_OFFLINE = offline
        advice = self._how_to_get(data_root)
        with reading(source, advice if offline else "check its name"):
            table = datasets.load_dataset(
                self.repository, self.subset, split=split, revision=self.revision
            )
        # The name of the dataset's folder in the cache.
        commit = next((Path(file["filename"]).parent.name for file in table.cache_files), None)
        if offline and self.revision not in (None, commit):
            # Without the hub, `datasets` reads the version that it read last.
            raise UserError(
                f"{source}: cached is commit {commit}, not revision '{self.revision}'; {advice}, "
                "or name the commit"
            )
        return _picked(table, source, columns, commit)

    def files(self, split: str, data_root: Path | None) -> list[Path]:
        """The files of a split below the data root, or none, named as on the hub:
        `<owner>/<name>/<subset>/train-00000-of-00003.parquet`, also without the owner.
        """
        inside = (self.subset,) if self.subset else ("", "data")
        roots = (data_root or DEFAULT_ROOT) / self.repository, self.folder(data_root)
        patterns = [f"{split}-*.parquet", *(f"{split}{suffix}" for suffix in _READERS)]
        found = (
            sorted((root / folder).glob(pattern))
            for root in roots
            for folder in inside
            for pattern in patterns
        )
        files = next(filter(None, found), [])
        number = re.search(r"-of-(\d+)\.parquet$", files[0].name) if files else None
        if number and int(number[1]) != len(files):
            raise UserError(
                f"{files[0].parent}: {len(files)} of {int(number[1])} files like "
                f"{files[0].name}; download the rest"
            )
        return files

    def folder(self, data_root: Path | None) -> Path:
        """The folder below the data root into which the dataset can be downloaded."""
        return (data_root or DEFAULT_ROOT) / self.repository.split("/")[-1]

    def status(self, splits: Sequence[str], data_root: Path | None) -> Status:
        """Which of the splits are below the data root."""
        counts = {split: len(self.files(split, data_root)) for split in splits}
        cached = Path(datasets.config.HF_DATASETS_CACHE, self.repository.replace("/", "___"))
        return Status(
            f"{self.repository} {self.subset or ''}".strip(),
            self.folder(data_root),
            {split: f"{count} files" for split, count in counts.items() if count},
            "" if all(counts.values()) else self._how_to_get(data_root),
            is_elsewhere=hub.is_reachable() or cached.is_dir(),
        )

    def _how_to_get(self, data_root: Path | None) -> str:
        """What downloads the dataset into its folder."""
        only = f" --include '{self.subset}/*'" if self.subset else ""
        folder = shlex.quote(str(self.folder(data_root)))
        return (
            f"with network access, run `hf download {self.repository} --repo-type dataset{only} "
            f"--local-dir {folder}`"
        )

    def refuse_revision(self, source: Path) -> None:
        """Refuse a revision of data that are read from this machine."""
        if self.revision is not None:
            raise UserError(
                f"task.revision = '{self.revision}': dataset '{self.repository}' is read from "
                f"{source}, which has no versions; remove task.revision, or move the files away"
            )


def find_files(pattern: str, data_root: Path | None) -> list[Path]:
    """The files that a recipe names, below the data root or the current folder; `*` matches
    several.
    """
    root = data_root or DEFAULT_ROOT
    for folder in (root, Path()):
        # Literally first, because names can contain brackets.
        if (file := folder / Path(pattern).expanduser()).is_file():
            return [file]
        if found := sorted(glob.glob(str(file), recursive=True)):  # noqa: PTH207 (absolute ones)
            return [Path(one) for one in found]
    raise UserError(f"data file '{pattern}' does not exist below {root} or the current folder")


def read_files(files: Sequence[Path], columns: Columns) -> Records:
    """The rows of all files, in order."""
    parts = []
    for file in files:
        with reading(file, "check the file; texts are UTF-8"):
            table = _table(file)
        parts.append(_picked(table, str(file), columns))
    texts = [row for part in parts for row in part.texts]
    labels = [label for part in parts for label in part.labels]
    return Records(texts, labels, ", ".join(map(str, files)))


def _table(file: Path) -> Any:
    """A file as a dataset; in csv files, every cell is text."""
    if file.suffix.lower() not in _READERS:
        raise UserError(f"{file}: unknown file type; expected one of {', '.join(_READERS)}")
    kind, options = _READERS[file.suffix.lower()]
    datasets.disable_progress_bars()
    # Its errors are raised, too.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    with warnings.catch_warnings():
        # A first row that is longer than the header; pandas refuses later ones by itself.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        if kind == "csv":
            names = pd.read_csv(file, nrows=0, **options).columns
            texts = datasets.Features({name: datasets.Value("string") for name in names})
            options = {**options, "features": texts}
        cache = str(cache_folder() / "datasets")
        return datasets.load_dataset(
            kind, data_files=[str(file)], split="train", cache_dir=cache, **options
        )


def _picked(table: Any, source: str, columns: Columns, commit: str | None = None) -> Records:
    """The texts and labels of a table."""
    texts = [_column(table, source, name, columns) for name in columns.text]
    labels = [] if columns.label is None else _column(table, source, columns.label, columns)
    return Records(list(zip(*texts, strict=True)), labels, source, commit)


def _column(table: Any, source: str, name: str, columns: Columns) -> list[Any]:
    """The cells of a column; a UserError for one that is neither text nor a label."""
    if name not in table.column_names and name not in columns.optional:
        hint = did_you_mean(name, table.column_names) or ";"
        names = ", ".join(table.column_names[:20])
        raise UserError(f"{source}: no column '{name}'{hint} its columns: {names}")
    cells = table[name][:] if name in table.column_names else [""] * len(table)
    if name in columns.optional:
        cells = ["" if cell is None else cell for cell in cells]
    read = [_label(cell) if name == columns.label else _text(cell) for cell in cells]
    if None in read:
        row, wanted = read.index(None), "a word or a number" if name == columns.label else "text"
        raise UserError(
            f"{source}, row {row + 1}: column '{name}': expected {wanted}, got {shown(cells[row])}"
        )
    return read


def _text(cell: Any) -> str | None:
    return cell if isinstance(cell, str) else None


def _label(cell: Any) -> Label | None:
    """A word or an integer; text that is an integer becomes one, since csv files have text only."""
    if isinstance(cell, str):
        word = cell.strip()
        return int(word) if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", word) else word or None
    return int(cell) if isinstance(cell, int | float) and cell == cell // 1 else None


def tokenise(
    tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int
) -> list[dict[str, np.ndarray[Any, Any]]]:
    """The tokenizer's inputs for each example. Pairs are joined with the tokenizer's separator."""
    parts = [list(part) for part in zip(*texts, strict=True)]
    encoded = tokenizer(*parts, truncation=True, max_length=max_length, return_attention_mask=False)
    # An empty text to which the tokenizer adds nothing becomes one unknown token.
    nothing = {name: [0] for name in encoded} | {"input_ids": [tokenizer.unk_token_id or 0]}
    return [
        {name: np.asarray(encoded[name][row] or nothing[name], np.int32) for name in encoded}
        for row in range(len(texts))
    ]


def digest_of(tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int) -> str:
    """A hash of everything that the tokens of some texts depend on."""
    backend = tokenizer.backend_tokenizer
    # It keeps the truncation of its last call; every call sets it, and the hash has it separately.
    backend.no_truncation()
    backend.no_padding()
    settings = ["1", backend.to_str(), tokenizer.truncation_side, *tokenizer.model_input_names]
    parts = [part for one in texts for part in (str(len(one)), *one)]
    digest = hashlib.blake2b(digest_size=16)
    for part in (*settings, str(max_length), *parts):
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def unknown_words(tokenizer: Any, tokens: Sequence[Any], split: str) -> dict[str, int]:
    """The number of tokens of a split that stand for unknown words, as `notable`; refuses a split
    of hardly anything else.
    """
    # Tokenizers that can write every text may call the token that ends texts unknown (GPT-2).
    roles = [getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep", "bos", "eos")]
    unknown = None if tokenizer.unk_token_id in roles else tokenizer.unk_token_id
    every = np.concatenate(tokens)
    words = every[~np.isin(every, [one for one in tokenizer.all_special_ids if one != unknown])]
    count = 0 if unknown is None else int((words == unknown).sum())
    if not len(words) or count > 0.9 * len(words):
        raise UserError(
            f"{split} data: {count} of {len(words)} tokens stand for unknown words; check the "
            "column of the texts, and whether model.pretrained has a tokenizer for their language"
        )
    return notable(split, "unknown words", count, len(words), "tokens")


def notable(split: str, problem: str, count: int, total: int, of: str) -> dict[str, int]:
    """Warn of a problem of more than 3 % of a split; its count, for run.json."""
    if count <= 0.03 * total:
        return {}
    message = f"{split} data: {problem}: {count} of {total} {of} ({count / total:.0%})"
    warnings.warn(message, DataWarning, stacklevel=2)
    return {f"{split}: {problem}": count}
