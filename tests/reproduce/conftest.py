"""Fixtures of the tests of `cudt reproduce`: the command in this process, without worker
processes."""

from __future__ import annotations

import pytest

from tests.sweep.conftest import InThisProcess, command

__all__ = ["command"]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch, no_figures: None) -> None:
    """Run trials in this process, and draw no figures."""
    monkeypatch.setattr("cudt.sweep.watch.Processes", InThisProcess)
