"""Fixtures of the tests of `cudt reproduce`: the command in this process, without worker processes."""

from __future__ import annotations

import pytest

from cudt.sweep import startup
from tests.sweep.conftest import InThisProcess, command

__all__ = ["command"]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch, no_figures: None) -> None:
    """Run trials in this process, do not time the imports in another, and draw no figures."""
    monkeypatch.setattr(startup, "worker_seconds", lambda: 2.5)
    monkeypatch.setattr("cudt.sweep.watch.Processes", InThisProcess)
