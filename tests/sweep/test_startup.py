from __future__ import annotations

import pytest

from cudt.sweep import startup


@pytest.mark.parametrize(("runs", "workers", "seconds"), [(0, 2, 0.0), (1, 2, 4.0), (5, 2, 11.0)])
def test_no_more_workers_are_started_than_there_are_runs(runs, workers, seconds, monkeypatch):
    monkeypatch.setattr(startup, "worker_seconds", lambda: 3.0)
    assert startup.seconds(runs, workers) == seconds


def test_imports_are_timed_in_a_process_of_its_own_and_not_waited_for_long(monkeypatch):
    assert startup.import_seconds() > 0.3
    monkeypatch.setattr(startup, "_IMPORT_TIMEOUT", 0.05)
    assert 0.05 <= startup.import_seconds() < 1
