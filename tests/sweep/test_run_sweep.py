from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from cudt.config import recipe
from cudt.runs.run import run_for
from cudt.sweep.queue import MAX_DEATHS
from cudt.utils.errors import UserError
from tests.sweep.planted import calls, height
from tests.sweep.searches import grid, seeds, sweep_of, swept, write_search

FOUR = {"constrained": grid({"descent.alpha": [0.1, 0.2, 0.3, 0.4]})}
#: The recipe's own.
RATE = 5e-3


def states(results) -> list[str]:
    return results.trials["state"].tolist()


# ---------------------------------------------------------------- from beginning to end


def test_every_cell_is_done_once_and_the_best_is_the_planted_one(tmp_path):
    sweep = sweep_of(tmp_path, arms=FOUR)
    found, printed = swept(sweep, tmp_path / "out", workers=2)
    assert sorted(calls(tmp_path / "out")) == [
        f"constrained {alpha} 0" for alpha in (0.1, 0.2, 0.3, 0.4)
    ]
    scores = dict(zip(found.trials["descent.alpha"], found.trials["score"], strict=True))
    assert scores == {alpha: height(alpha, RATE) for alpha in (0.1, 0.2, 0.3, 0.4)}
    assert found.best["descent.alpha"].tolist() == [0.2]
    assert "4/4  constrained: alpha=" in printed
    assert (found.n_finished, found.n_failed) == (4, 0)
    assert found.trials["deaths"].tolist() == [0] * 4


def test_the_best_recipe_is_taken_by_train_and_is_the_best_run(tmp_path, no_processes):
    arms = {**FOUR, "erm": seeds(4, fixed={"objective": "erm"})}
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]}, arms=arms)
    found, _ = swept(sweep, tmp_path / "out")
    # Every arm in every setting, and the best of all: α = 0.2 without noise, the first of two that
    # are equal.
    loaded = recipe.load(str(found.folder / "best.yaml"))
    best = sweep.recipe({"noise.gamma_train": 0.0}, "constrained", {"descent.alpha": 0.2})
    assert (loaded.name, loaded.identity()) == ("reviews-ut", best.identity())
    assert loaded.resolved() == best.resolved()
    assert run_for(loaded, Path()).path.as_posix() == found.best["run"].tolist()[0]
    for row in found.best.to_dict("records"):
        name = f"{row['setting']}-{row['arm']}".replace("=", "_")
        one = recipe.load(str(found.folder / "best" / f"{name}.yaml"))
        assert run_for(one, Path()).path.as_posix() == row["run"]
    assert len(list((found.folder / "best").iterdir())) == 4


def test_finished_cells_are_never_done_again(tmp_path):
    sweep = sweep_of(tmp_path, arms=FOUR)
    before, _ = swept(sweep, tmp_path / "out")
    text = (before.folder / "trials_wide.csv").read_text()
    after, printed = swept(sweep, tmp_path / "out")
    assert len(calls(tmp_path / "out")) == 4
    assert (after.folder / "trials_wide.csv").read_text() == text
    assert "resuming: 4 of 4 trials are done" in printed


# ---------------------------------------------------------------- cells that fail


def test_a_cell_that_fails_is_recorded_with_its_reason_and_the_sweep_continues(tmp_path):
    found, printed = swept(sweep_of(tmp_path, arms=FOUR), tmp_path / "out", "fails_at_two_tenths")
    assert states(found) == ["finished", "failed", "finished", "finished"]
    assert found.trials["reason"].tolist() == [None, "0.2 is\nnot allowed", None, None]
    assert found.best["descent.alpha"].tolist() == [0.1]
    assert found.best["failed"].tolist() == [1]
    assert "constrained: alpha=0.2  failed: 0.2 is\nnot allowed" in printed
    # The reason is read back with its line break.
    table = pd.read_csv(found.folder / "trials_wide.csv")
    assert table["reason"][1] == "0.2 is\nnot allowed"
    # Not tried again unless that is asked for.
    swept(sweep_of(tmp_path, arms=FOUR), tmp_path / "out", "fails_at_two_tenths")
    assert len(calls(tmp_path / "out")) == 4


def test_fail_fast_starts_no_cell_after_a_failure(tmp_path):
    sweep = sweep_of(tmp_path, arms=FOUR)
    found, _ = swept(sweep, tmp_path / "out", "fails_at_two_tenths", fail_fast=True)
    assert len(calls(tmp_path / "out")) == 2
    assert states(found) == ["finished", "failed", "waiting", "waiting"]
    # The next sweep runs those.
    found, _ = swept(sweep, tmp_path / "out", "fails_at_two_tenths", fail_fast=True)
    assert states(found) == ["finished", "failed", "finished", "finished"]


def test_the_command_says_by_its_exit_code_that_cells_failed(command, tmp_path):
    path = write_search(tmp_path, arms=FOUR)
    arguments = ["sweep", "--search", path, "--out", "out", "--device", "cpu"]
    code, output, error = command(*arguments, function="fails_at_two_tenths")
    assert (code, error) == (1, "")
    assert "1 failed: see the reasons in trials_wide.csv, retry them with --retry-failed" in output
    code, output, _ = command(*arguments, "--retry-failed", function="on_the_hill")
    assert code == 0
    assert "best of constrained: alpha=0.2" in output


# ---------------------------------------------------------------- workers that die


def test_a_cell_whose_worker_died_is_done_by_another(tmp_path):
    found, printed = swept(sweep_of(tmp_path), tmp_path / "out", "dies_the_first_time", workers=2)
    assert states(found) == ["finished"] * 3
    assert found.trials["deaths"].tolist() == [1] * 3
    assert len(calls(tmp_path / "out")) == 6
    # How a worker ended is not shown if the next one is done before the display looks.
    assert printed.count("the worker process ended") == 3
    assert "the worker process ended with exit code 3" in printed


def test_a_cell_that_kills_its_workers_is_given_up(tmp_path):
    found, printed = swept(sweep_of(tmp_path), tmp_path / "out", "always_dies_at_two_tenths")
    assert states(found) == ["finished", "failed", "finished"]
    assert found.trials["deaths"].tolist() == [0, MAX_DEATHS, 0]
    assert calls(tmp_path / "out").count("constrained 0.2 0") == MAX_DEATHS == 5
    reason = found.trials["reason"][1]
    assert reason.startswith("5 workers died while running it, the last one by signal 9 (SIGKILL)")
    assert reason in printed


# ---------------------------------------------------------------- stopping


def test_ctrl_c_interrupts_cells_and_the_same_command_resumes(command, tmp_path):
    path = write_search(tmp_path, arms=FOUR)
    arguments = ["sweep", "--search", path, "--out", "out", "--device", "cpu"]
    code, output, error = command(*arguments, function="interrupts_the_sweep_once")
    assert code == 130
    assert error.endswith(": interrupted; run the same command to resume\n")
    assert "constrained: alpha=0.2: interrupted, can be resumed" in output
    assert len(calls(Path("out"))) == 2
    code, output, error = command(*arguments, function="interrupts_the_sweep_once")
    assert (code, error) == (0, "")
    assert "resuming: 1 of 4 trials are done" in output
    # The one that was under way is the same cell, and none is done twice.
    assert calls(Path("out"))[1:] == [f"constrained {alpha} 0" for alpha in (0.2, 0.2, 0.3, 0.4)]


def test_a_full_disk_stops_the_sweep_and_spends_nothing(command, no_processes, tmp_path):
    path = write_search(tmp_path, arms=FOUR)
    arguments = ["sweep", "--search", path, "--out", "out", "--device", "cpu"]
    code, output, error = command(*arguments, function="finds_the_disk_full")
    assert code == 1
    assert error == "stopped: [Errno 28] No space left on device: 'out/run.json'\n"
    assert (len(error.splitlines()), "failed" in output) == (1, False)
    Path("out/space").touch()
    code, output, error = command(*arguments, function="finds_the_disk_full")
    assert (code, error) == (0, "")
    (table,) = Path("out").rglob("trials_wide.csv")
    trials = pd.read_csv(table)
    assert trials["state"].tolist() == ["finished"] * 4
    assert trials["deaths"].tolist() == [0] * 4
    assert sorted(calls(Path("out"))) == [
        f"constrained {alpha} 0" for alpha in (0.1, 0.2, 0.3, 0.4)
    ]


# ---------------------------------------------------------------- before anything is run


def test_data_that_are_missing_are_reported_before_anything_is_made(tmp_path):
    sweep = sweep_of(tmp_path, recipe="imdb-ut", fixed={})
    with pytest.raises(UserError):
        swept(sweep, tmp_path / "out")
    assert not (tmp_path / "out").exists()
