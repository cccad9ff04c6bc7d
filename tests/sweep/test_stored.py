"""Sweeps that others join: what the storage says about them, and the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudt.sweep import stored
from cudt.sweep.definition import Sweep
from cudt.sweep.run_sweep import SweepOptions, resume_command
from cudt.sweep.storage import open_storage, own_storage
from cudt.utils.errors import UserError
from tests.sweep.planted import calls
from tests.sweep.searches import drawn, finish, grid, seeds, sweep_of

TWO = {
    "settings": {"noise.gamma_train": [0.0, 0.8]},
    "arms": {"erm": seeds(2, fixed={"objective": "erm"})},
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return own_storage(tmp_path)


def begun(sweep: Sweep, url: str) -> Sweep:
    studies = stored.open_studies(sweep, open_storage(url))
    stored.begin(sweep, studies, fail_fast=False, retry_failed=False)
    return sweep


@pytest.mark.parametrize(
    "changes", [{}, TWO, {"arms": {"drawn": drawn("tpe", 3)}, "name": "other"}]
)
def test_the_storage_has_the_whole_sweep(changes, url, tmp_path):
    sweep = begun(sweep_of(tmp_path, **changes), url)
    found = stored.find(url)
    assert (found.name, found.identity()) == (sweep.name, sweep.identity())
    assert stored.first_study(found) == stored.first_study(sweep)
    assert [found.listed(arm) for arm in found.search.arms] == [
        sweep.listed(arm) for arm in sweep.search.arms
    ]
    assert found.base == sweep.base


def test_of_several_sweeps_the_unfinished_one_or_the_named_one_is_joined(url, tmp_path):
    one = begun(sweep_of(tmp_path, name="one", arms={"erm": seeds(1)}), url)
    two = begun(sweep_of(tmp_path, name="two"), url)
    listed = rf"one-{one.identity()} of reviews-ut, two-{two.identity()} of reviews-ut"
    with pytest.raises(UserError, match=f"choose one with --search; there are {listed}"):
        stored.find(url)
    assert stored.find(url, "two").name == "two"
    assert stored.find(url, f"two-{two.identity()}").name == "two"
    with pytest.raises(UserError, match=f"no sweep is called 'three'; there are {listed}"):
        stored.find(url, "three")
    (study,) = stored.open_studies(one, open_storage(url))
    trial = study.next()
    assert trial is not None
    finish(study, trial, 0.5, {})
    assert stored.find(url).name == "two"


def test_a_storage_without_a_sweep_cannot_be_joined(url, tmp_path):
    with pytest.raises(
        UserError, match=r"no sweep has begun here; begin it with `cudt sweep --search"
    ):
        stored.find(url)
    # Looking for one makes no file.
    assert not list(tmp_path.iterdir())


def test_a_finished_sweep_cannot_be_joined(url, tmp_path):
    (study,) = stored.open_studies(
        begun(sweep_of(tmp_path, arms={"erm": seeds(1)}), url), open_storage(url)
    )
    trial = study.next()
    assert trial is not None
    finish(study, trial, 0.5, {})
    with pytest.raises(UserError, match="every sweep is finished"):
        stored.find(url)


def test_after_a_failure_nothing_is_started_if_the_sweep_fails_fast(url, tmp_path):
    sweep = sweep_of(tmp_path)
    studies = stored.open_studies(sweep, open_storage(url))
    for fail_fast in (False, True):
        stored.begin(sweep, studies, fail_fast=fail_fast, retry_failed=False)
        assert not stored.is_closed(studies)
        stored.close_after_failure(studies)
        assert stored.is_closed(studies) == fail_fast


def test_the_command_joins_a_sweep_and_runs_what_is_left(command, no_processes, url, tmp_path):
    sweep = begun(
        sweep_of(tmp_path, arms={"constrained": grid({"descent.alpha": [0.1, 0.2]})}), url
    )
    (study,) = stored.open_studies(sweep, open_storage(url))
    trial = study.next()
    assert trial is not None
    finish(study, trial, 0.25, {"run": "elsewhere", "updates": 1, "seconds": 1.0, "feasible": True})
    arguments = ["sweep", "--join", "--storage", url, "--out", "mine", "--device", "cpu"]
    code, output, error = command(*arguments, function="on_the_hill")
    assert (code, error) == (0, "")
    assert "resuming: 1 of 2 trials are done" in output
    assert calls(Path("mine")) == ["constrained 0.2 0"]
    # The tables have both.
    assert "all 2 finished runs" in output
    code, _, error = command(*arguments, function="on_the_hill")
    assert (code, "every sweep is finished" in error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--join"], "--join: needs --storage"),
        (
            ["--join", "--storage", "sqlite:///x.db", "--recipe", "imdb-ut"],
            "--recipe: cannot be given with --join",
        ),
        (
            ["--join", "--storage", "sqlite:///x.db", "--fail-fast"],
            "--fail-fast: cannot be given with --join",
        ),
        (
            ["--join", "--storage", "sqlite:///x.db", "--retry-failed"],
            "--retry-failed: cannot be given with --join",
        ),
        ([], "--search: missing"),
    ],
)
def test_wrong_uses_of_the_command_say_what_to_do(arguments, message, command, monkeypatch):
    monkeypatch.delenv("CUDT_STORAGE", raising=False)
    code, _, error = command("sweep", *arguments)
    assert code == 2
    assert message in error


def test_the_resume_command_has_no_password(tmp_path):
    asked = SweepOptions(
        tmp_path, "cpu", storage="postgresql://me:secret@db/trials?password=secret"
    )
    assert resume_command(tmp_path, asked).endswith("--storage postgresql://me@db/trials")
