from __future__ import annotations

import pytest

from cudt.data import hub
from cudt.runs.info import RunInfo
from cudt.tasks import base
from tests.cli.conftest import CommandLine


@pytest.fixture(autouse=True)
def nothing_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, no weights in the hub's cache and no data set, whatever this machine has."""
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    monkeypatch.setattr(
        "cudt.reproduce.plan.missing", lambda recipe, root: [f"{recipe.name}-weights"]
    )
    monkeypatch.setattr(base, "published", lambda root: [])


def test_a_missing_weight_is_named_with_its_recipe(call: CommandLine):
    code, printed, _ = call("doctor")
    assert code == 0
    assert "missing     imdb-minilm: imdb-minilm-weights" in printed


def test_a_folder_or_a_data_root_that_does_not_exist(call: CommandLine):
    assert call("doctor", "gone") == (2, "", "error: folder 'gone' does not exist\n")
    code, printed, _ = call("doctor", "--data-root", "gone")
    assert code == 1
    assert "data root 'gone' does not exist" in printed


def test_unfinished_and_damaged_runs_are_listed(call: CommandLine, copy):
    assert "1 finished" in call("doctor", "copy")[1]
    history = copy.path / "history.csv"
    before = history.read_bytes()
    history.write_text("changed")
    code, printed, _ = call("doctor", "copy")
    assert code == 1
    assert "problem     copy/history.csv: damaged" in printed
    history.write_bytes(before)
    copy.update_info(RunInfo(status="running"))
    code, printed, _ = call("doctor", "copy")
    assert code == 0
    assert "unfinished  copy: resume it: cudt train" in printed
