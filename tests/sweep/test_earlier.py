"""Sweeps of the version before workers shared a storage: their files are resumed, and draws are the same.

earlier/study.sql   a study.db of cudt at commit 8611144, as SQL: `listed` has a finished, a failed, a running and a
                    waiting cell, `drawn` three ended and a running one, `guided` (tpe) two ended ones
earlier/draws.json  number, settings and score of the trials that one worker of that version ran
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cudt.sweep import run_sweep
from cudt.sweep.definition import Parameters, Sweep
from cudt.sweep.run_sweep import SweepOptions
from cudt.sweep.storage import own_storage
from tests.sweep import planted
from tests.sweep.planted import calls
from tests.sweep.searches import drawn, finish, grid, study_of, sweep_of, swept

EARLIER = Path(__file__).parent / "earlier"
DRAWS = json.loads((EARLIER / "draws.json").read_text())
SPACES: dict[str, dict[str, Any]] = {
    "hill": {
        "descent.alpha": {"low": 0.0, "high": 0.9},
        "descent.dual.learning_rate": {"low": 1e-5, "high": 1.0, "log": True},
    },
    "seeds": {"seed": {"low": 0, "high": 31, "type": "int"}},
    # As many as the budget: the sampler repeats itself, and is bypassed in the end.
    "few": {"seed": [0, 1, 2, 3, 4, 5]},
}


def score_of(parameters: Parameters) -> float:
    if "seed" in parameters:
        return -abs(float(parameters["seed"] or 0) - 7)
    alpha, rate = parameters.values()
    return planted.height(float(alpha or 0), float(rate or 0))


@pytest.mark.parametrize("case", DRAWS)
def test_one_worker_draws_what_it_drew_before(case, tmp_path):
    sampler, space = case.split()
    study = study_of(sweep_of(tmp_path, arms={"drawn": drawn(sampler, len(DRAWS[case]), SPACES[space])}))
    ran = []
    while trial := study.next():
        score = score_of(trial.parameters)
        finish(study, trial, score, {})
        ran.append([trial.number, list(trial.parameters.values()), score])
    assert ran == DRAWS[case]


@pytest.fixture
def sweep(tmp_path) -> Sweep:
    """The sweep of the earlier version's file, which is in its folder below `out`."""
    alphas = {"descent.alpha": [0.1, 0.2, 0.3, 0.4]}
    arms = {"listed": grid(alphas), "drawn": drawn("random", 5), "guided": drawn("tpe", 4)}
    sweep = sweep_of(tmp_path, arms=arms, unequal_budgets="a test")
    folder = sweep.folder(tmp_path / "out")
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "study.db") as database:
        database.executescript((EARLIER / "study.sql").read_text())
    database.close()
    return sweep


def test_the_file_of_an_earlier_version_is_resumed_and_nothing_is_trained_twice(sweep, no_processes, tmp_path):
    found, printed = swept(sweep, tmp_path / "out")
    # Seven of thirteen cells had ended; two that were running are resumed with their settings.
    assert "resuming: 7 of 13 trials are done" in printed
    started = [line.split()[1] for line in calls(tmp_path / "out")]
    assert len(started) == 6
    assert {"0.3", "0.4", "0.321229325190843"} <= set(started)
    table = found.trials.set_index(["arm", "trial"])
    assert table["state"].groupby("arm").apply(list).to_dict() == {
        "listed": ["finished", "failed", "finished", "finished"],
        "drawn": ["finished", "failed", "finished", "finished", "finished"],
        "guided": ["finished", "failed", "finished", "finished"],
    }
    assert table.loc[("listed", 1), "reason"] == "it was too steep"
    # What the running ones had spent before is counted.
    assert table.loc[("listed", 2), "seconds"] >= 2.5
    assert table.loc[("drawn", 3), "deaths"] == 1
    assert found.left == 0


def test_the_failed_trials_of_an_earlier_version_are_tried_again(sweep, no_processes, tmp_path):
    swept(sweep, tmp_path / "out")
    found, _ = swept(sweep, tmp_path / "out", retry_failed=True)
    assert found.n_failed == 0
    assert found.n_finished == 13
    assert len(calls(tmp_path / "out")) == 9


def test_a_plan_reads_the_file_of_an_earlier_version(sweep, tmp_path):
    options = SweepOptions(tmp_path / "out", "cpu")
    studies = run_sweep.open_studies(sweep, own_storage(sweep.folder(options.out)))
    states = {study.arm: [trial.state for trial in study.trials()] for study in studies}
    assert states["listed"] == ["finished", "failed", "running", "waiting"]
    assert states["drawn"] == ["finished", "failed", "finished", "running"]
