"""What the tests of evaluation share: a finished run that they may write into."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import pytest

from cudt.data.loader import Batch
from cudt.runs.find import open_run
from cudt.runs.run import Run


def untracked(batches: Iterable[Batch], total: int, what: str) -> Iterable[Batch]:
    """No progress bar."""
    return batches


@pytest.fixture
def run(trained_run: Run, tmp_path) -> Run:
    shutil.copytree(trained_run.path, tmp_path / "run")
    return open_run(tmp_path / "run")
