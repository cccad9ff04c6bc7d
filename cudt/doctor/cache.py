"""The cache of decoded frames and tokenized texts: its size, and damaged entries, which can be made again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.scope import Scope
from cudt.utils.files import cache_folder
from cudt.utils.walk import entries_below


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Entries of the cache that are not as they were written."""
    from cudt.data import frame_cache, token_cache

    clips = frame_cache.names()
    damaged_clips = [
        name for name in scope.track(clips, len(clips), "checking decoded frames") if frame_cache.is_damaged(name)
    ]
    if damaged_clips:
        yield Diagnosis(
            "warning",
            f"{frame_cache.folder()}: {len(damaged_clips)} of {len(clips)} decoded clips are damaged, incomplete, or "
            "from an earlier version",
            "delete them; they are decoded again when needed",
            partial(_discard_clips, damaged_clips),
        )
    texts = sorted(token_cache.folder().glob("[!.]*.npz"))
    damaged_texts = [
        path for path in scope.track(texts, len(texts), "checking tokens") if not token_cache.is_intact(path)
    ]
    if damaged_texts:
        yield Diagnosis(
            "warning",
            f"{token_cache.folder()}: {len(damaged_texts)} of {len(texts)} files of tokens are damaged",
            "delete them; the texts are tokenized again when needed",
            partial(_delete, damaged_texts),
        )
    folder = cache_folder()
    size = sum(entry.stat().st_size for entry in entries_below(folder) if entry.is_file(follow_symlinks=False))
    yield Diagnosis("ok", f"{folder}: {len(clips)} clips, {len(texts)} tokenized splits, {size / 2**20:.0f} MB")


def _discard_clips(names: Sequence[str]) -> str:
    from cudt.data import frame_cache

    for name in names:
        frame_cache.discard_damaged(name)
    return f"deleted {len(names)} clips"


def _delete(paths: Sequence[Path]) -> str:
    for path in paths:
        path.unlink(missing_ok=True)
    return f"deleted {len(paths)} files"


CHECK = Check("Cache", 45, check)
