"""What tests of reproducing need: the command in this process, without processes of its own."""

from __future__ import annotations

import pytest

from cudt.reproduce import evaluation, plan
from tests.sweep.conftest import InThisProcess, command, no_disk

__all__ = ["command", "no_disk"]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for cells nor for evaluations, nor to see how long one takes to start."""
    monkeypatch.setattr(plan, "_importing", lambda: 1.0)
    monkeypatch.setattr("cudt.sweep.conduct.Workers", InThisProcess)
    monkeypatch.setattr(evaluation, "Workers", InThisProcess)
