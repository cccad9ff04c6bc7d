"""The files of a checkpoint: one of JSON, written last, and the safetensors files that it names.

    checkpoint-7.json           progress, plain numbers, and the size and SHA-256 of everything below
    checkpoint-7.safetensors    moments of the optimisers, multipliers, states of the random generators
    step-900.safetensors        the weights after 900 updates, or the folder step-900 of shards (shards.py)
    ../history.csv              its first bytes

A number is never used again while its files exist, so that no file of a complete checkpoint is
replaced.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from safetensors.torch import save_file
from torch import Tensor
from typing_extensions import Self

from cudt.training.state import TrainingState
from cudt.utils.errors import DamagedFileError
from cudt.utils.files import digest_of, folder_next_to, replacing, write_text

_NAME = re.compile(r"checkpoint-(\d+)\.json")
#: A file next to that of JSON, or in a folder next to it.
_FILE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
#: What is wrong with a file on a bad sector.
UNREADABLE = "cannot be read: input/output error"


class _Strict(BaseModel):
    """An object in the file: every key is required, and there are no others."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class FileRecord(_Strict):
    """What a file was when it was written."""

    bytes: int
    sha256: str


class CheckpointFile(_Strict):
    """The content of checkpoint-<number>.json, without its own checksum."""

    format: Literal[1]
    progress: TrainingState
    weights: str
    """The file of the weights, or the folder of shards of weights and optimiser, next to this
    file."""
    state: Any
    """Optimisers, multipliers and random generators (state_tree.py)."""
    state_file: str
    """The file of their tensors."""
    history: FileRecord
    """The beginning of history.csv that belongs to this checkpoint."""
    files: dict[str, FileRecord]
    """All files but history.csv."""

    @field_validator("progress", mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """The progress, of which no key has a default in a file."""
        if isinstance(value, TrainingState):
            return value
        expected = [one.name for one in fields(TrainingState)]
        if not isinstance(value, dict) or sorted(value) != sorted(expected):
            raise ValueError(f"expected the keys {', '.join(expected)}")
        return TypeAdapter(TrainingState).validate_python(value)

    @field_validator("files")
    @classmethod
    def _inside(cls, value: dict[str, FileRecord]) -> dict[str, FileRecord]:
        """The files, none of which is in another folder."""
        if bad := [name for name in value if not _FILE.fullmatch(name)]:
            raise ValueError(f"bad file name {bad[0]!r}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Every file that is named also has a checksum."""
        folders = {name.split("/")[0] for name in self.files}
        if self.state_file not in self.files or self.weights not in folders:
            raise ValueError("the state file or the weights are not among the files")
        return self


def numbers_in(folder: Path) -> list[int]:
    """The numbers of the checkpoints in a folder, the newest first."""
    found = [_NAME.fullmatch(path.name) for path in folder.glob("checkpoint-*.json")]
    return sorted((int(one[1]) for one in found if one), reverse=True)


def file_of(folder: Path, number: int) -> Path:
    """The file that makes a checkpoint exist."""
    return folder / f"checkpoint-{number}.json"


def write(path: Path, content: CheckpointFile) -> None:
    """Write the file with its own checksum."""
    values = content.model_dump(mode="python")
    write_text(path, json.dumps({**values, "sha256": _checksum(values)}))


def read(path: Path) -> CheckpointFile:
    """The content of the file; a DamagedFileError if it is not as it was written."""
    try:
        values = json.loads(path.read_bytes())
        checksum = values.pop("sha256")
        if checksum != _checksum(values):
            raise damaged(path, "wrong checksum")
        return CheckpointFile.model_validate(values)
    except FileNotFoundError:
        raise damaged(path, "missing") from None
    except OSError as error:
        raise damaged(path, unreadable(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        raise damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise damaged(path, "not the JSON of a checkpoint") from None


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def damaged(path: Path, reason: str) -> DamagedFileError:
    """The error for a file of a checkpoint, which has no other to replace it."""
    folder = path.parent if path.parent.name == "checkpoints" else path.parent / "checkpoints"
    return DamagedFileError(path, reason, f"delete {folder} to train from the beginning")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> FileRecord:
    """Write a safetensors file; return what to check it by."""
    # The library writes a temporary file of its own next to the given one, which a kill would leave
    # there for ever.
    with replacing(path) as temporary, folder_next_to(path) as folder:
        save_file(tensors, folder / "tensors")
        (folder / "tensors").replace(temporary)
        return FileRecord(bytes=temporary.stat().st_size, sha256=digest_of(temporary))


def damage_of(path: Path, expected: FileRecord) -> str | None:
    """What is wrong with a file; None if it is as it was written."""
    try:
        size = path.stat().st_size
        if size != expected.bytes:
            return f"{size} bytes, expected {expected.bytes}"
        return None if digest_of(path) == expected.sha256 else "wrong checksum"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return unreadable(error)


def unreadable(error: OSError) -> str:
    """What is wrong with a file on a bad sector; other errors are raised, because the file may be
    intact.
    """
    if error.errno != errno.EIO:
        raise error
    return UNREADABLE
