"""The checkpoints of a run that is not finished: whether training can resume from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cudt.doctor.deleting import check_inside
from cudt.doctor.diagnosis import Diagnosis
from cudt.doctor.run_lock import held
from cudt.utils.errors import DamagedFileError
from cudt.utils.files import delete

if TYPE_CHECKING:
    from cudt.training.checkpoint_file import CheckpointFile


def check(run: Path) -> Iterator[Diagnosis]:
    """Damaged checkpoints; one that has an intact one before it can be deleted."""
    folder = run / "checkpoints"
    if not any(folder.glob("checkpoint-*.json")):
        return
    try:
        from cudt.training import checkpoint_file
    except ImportError:
        yield Diagnosis("note", f"{run}: checkpoints are not checked, because torch cannot be imported")
        return
    numbers = checkpoint_file.numbers_in(folder)
    damages = {number: reason for number in numbers if (reason := _damage(folder, number)) is not None}
    intact = [number for number in numbers if number not in damages]
    for number, reason in damages.items():
        path = checkpoint_file.file_of(folder, number)
        if intact:
            # Of the newest intact one nothing may be deleted: the two share files.
            yield Diagnosis(
                "warning",
                f"{path}: damaged checkpoint ({reason})",
                "training resumes from the other checkpoint; delete the damaged one",
                partial(_delete, run, number),
            )
        else:
            advice = f"no checkpoint is left to resume from; delete {folder} to train from the beginning"
            if any(checkpoint_file.UNREADABLE in one for one in damages.values()):
                advice = "check the disk, and resume the run"
            yield Diagnosis("problem", f"{path}: damaged checkpoint ({reason})", advice)


def _damage(folder: Path, number: int) -> str | None:
    """What is wrong with a checkpoint; None if it is intact."""
    from cudt.training.checkpoint_file import damage_of, file_of, read

    try:
        content = read(file_of(folder, number))
    except DamagedFileError as error:
        return error.reason
    for name, record in content.files.items():
        if (reason := damage_of(folder / name, record)) is not None:
            return f"{name}: {reason}"
    return _damage_of_history(folder.parent / "history.csv", content)


def _damage_of_history(file: Path, content: CheckpointFile) -> str | None:
    """What is wrong with the beginning of history.csv that belongs to a checkpoint; training appends to it."""
    from cudt.training.checkpoint_file import unreadable

    try:
        with file.open("rb") as opened:
            beginning = opened.read(content.history.bytes)
    except FileNotFoundError:
        return f"{file.name} is missing"
    except OSError as error:
        return f"{file.name}: {unreadable(error)}"
    if len(beginning) < content.history.bytes:
        return f"{file.name} has {len(beginning)} bytes, but had {content.history.bytes}"
    is_same = hashlib.sha256(beginning).hexdigest() == content.history.sha256
    return None if is_same else f"{file.name} was changed"


def _delete(run: Path, number: int) -> str:
    """Delete a checkpoint and the files that no other checkpoint names."""
    from cudt.training import checkpoint_file

    folder = run / "checkpoints"
    with held(run):
        intact = [one for one in checkpoint_file.numbers_in(folder) if one != number and _damage(folder, one) is None]
        assert intact, "it was found before"
        used = {name for one in intact for name in _files(folder, one)}
        deleted = [checkpoint_file.file_of(folder, number)]
        deleted += [folder / name for name in _files(folder, number) if name not in used]
        check_inside(run, deleted)
        for path in deleted:
            delete(path)
    return f"deleted {', '.join(path.name for path in deleted)}"


def _files(folder: Path, number: int) -> list[str]:
    """What a checkpoint names, without folders of shards; nothing if its own file is damaged."""
    from cudt.training.checkpoint_file import file_of, read

    try:
        content: CheckpointFile = read(file_of(folder, number))
    except DamagedFileError:
        return [file_of(folder, number).with_suffix(".safetensors").name]
    return list(content.files)
