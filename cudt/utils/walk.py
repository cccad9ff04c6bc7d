"""Finding files below a folder, however deep it is."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


def entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder; links are not followed, and folders that cannot be read are empty.

    Not `rglob`, which is a RecursionError where somebody else has nested a thousand folders.
    """
    left = [str(folder)]
    while left:
        # Another process may delete a folder meanwhile.
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)


def files_below(folder: Path, names: Collection[str]) -> list[Path]:
    """The files of some names in a folder and below it, sorted."""
    return sorted(Path(entry.path) for entry in entries_below(folder) if entry.name in names and entry.is_file())
