from __future__ import annotations

import pytest
from optuna.storages import BaseStorage

from cudt.reproduce import outcome
from cudt.reproduce.queues import ExperimentQueues
from cudt.sweep.queue import TrialQueue
from cudt.sweep.storage import open_storage
from tests.reproduce.scales import listed, scale_of
from tests.reproduce.test_evaluation import four_runs, queues_of, train
from tests.sweep.searches import fail, finish


@pytest.fixture
def storage() -> BaseStorage:
    return open_storage(None)


@pytest.fixture
def trained(storage, tmp_path) -> ExperimentQueues:
    """Four runs that are to be evaluated."""
    queues = queues_of(four_runs(tmp_path, "all"), storage, tmp_path / "out")
    for arm in ("constrained", "constrained", "erm", "erm"):
        train(queues, arm, 0.5)
    return queues


def outcome_of(queues: ExperimentQueues, *missing: str) -> outcome.ExperimentOutcome:
    (found,) = outcome.of([queues], [[*missing]])
    return found


def end(queue: TrialQueue, reason: str = "") -> None:
    """End the next trial of a queue; with a reason it fails."""
    queue.top_up()
    trial = queue.next()
    assert trial is not None
    if reason:
        fail(queue, trial, reason, {})
    else:
        finish(queue, trial, 0.0, {})


def test_evaluations_that_are_left_are_not_done(trained):
    found = outcome_of(trained)
    assert not found.is_done
    assert found.problems() == ["skipped: 4 runs were not evaluated"]
    assert found.summary().startswith("partly skipped")


def test_what_is_missing_here_is_the_reason_although_everything_is_trained(trained):
    assert (
        outcome_of(trained, "dataset X is missing").problems()[0] == "skipped: dataset X is missing"
    )


def test_an_evaluation_that_failed_is_not_also_left(trained, tmp_path):
    end(trained.evaluations.queue, "out of memory")
    end(trained.evaluations.queue)
    end(trained.evaluations.queue)
    end(trained.evaluations.queue)
    found = outcome_of(trained)
    assert (found.runs, found.evaluated) == (4, 3)
    assert found.problems() == [f"failed: {tmp_path}/out/reviews-ut/constrained-0: out of memory"]


def test_completions_that_are_left_are_not_done(storage, tmp_path, monkeypatch):
    # The weights are missing, which would be the reason.
    monkeypatch.setattr(outcome, "unusable", lambda *_: "")
    asked = {"instructions": "mine.json", "gammas": [0.0, 1.5], "limit": 2}
    (experiment,) = scale_of(tmp_path, listed("smoke-llama", completions=asked)).experiments
    (tmp_path / "mine.json").write_text("[]")
    queues = queues_of(experiment, storage, tmp_path / "out", data_root=tmp_path)
    train(queues, "constrained", 0.5)
    train(queues, "erm", 0.5)
    end(queues.evaluations.queue)
    end(queues.evaluations.queue)
    assert queues.completions is not None
    end(queues.completions.queue)
    assert outcome_of(queues).problems() == ["skipped: 3 files of completions were not written"]
    (tmp_path / "mine.json").unlink()
    (problem,) = outcome_of(queues).problems()
    assert problem.startswith("skipped: completions: file")
