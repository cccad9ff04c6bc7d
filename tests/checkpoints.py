"""What tests ask about the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path

from cudt.runs.run import Run
from cudt.training import checkpoint_file
from cudt.training.checkpoint_file import CheckpointFile


def newest_file(run: Run) -> Path:
    """The file that makes the newest checkpoint exist."""
    return checkpoint_file.file_of(run.checkpoints, checkpoint_file.numbers_in(run.checkpoints)[0])


def newest(run: Run) -> CheckpointFile:
    """The content of that file."""
    return checkpoint_file.read(newest_file(run))


def names(run: Run) -> list[str]:
    """The files in the folder of checkpoints."""
    return sorted(path.name for path in run.checkpoints.iterdir())
