from __future__ import annotations

import pytest

from cudt.reproduce.forecast import Forecast
from cudt.reproduce.queues import ExperimentQueues
from cudt.reproduce.stored import ReproduceOptions
from cudt.sweep.storage import open_storage
from tests.reproduce.scales import listed, scale_of, write_search
from tests.reproduce.test_evaluation import TWO_EACH, train


@pytest.fixture
def experiments(tmp_path) -> list[ExperimentQueues]:
    """Four runs of which two are evaluated, and two runs that are both evaluated."""
    one, other = write_search(tmp_path, "one", arms=TWO_EACH), write_search(tmp_path, "other")
    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    return [
        ExperimentQueues(experiment, storage, "mine", ReproduceOptions(tmp_path, "cpu"))
        for experiment in scale_of(tmp_path, listed(one), listed(other)).experiments
    ]


def test_the_rest_takes_as_long_as_finished_trials_did_and_else_as_planned(experiments):
    forecast = Forecast(experiments, [10.0, 100.0])
    assert forecast.seconds() == (4 + 2) * 10 + (2 + 2) * 100
    train(experiments[0], "erm", 0.5)
    # It took two seconds; evaluations have not been measured yet.
    assert forecast.seconds() == 3 * 2 + 2 * 10 + (2 + 2) * 100


def test_it_is_divided_by_the_workers_that_run_a_trial_on_any_host(experiments, monkeypatch):
    forecast = Forecast(experiments, [10.0, 100.0])
    assert forecast() == ""
    for process, (host, experiment) in enumerate([("a", 0), ("b", 0), ("b", 1)]):
        holder = {"host": host, "machine": host, "process": process}
        monkeypatch.setattr("cudt.sweep.shared.new_holder", lambda holder=holder: holder)
        assert experiments[experiment].studies[0].next() is not None
    for study in [study for one in experiments for study in one.studies]:
        study.refresh()
    again = Forecast(experiments, [10.0, 100.0])
    assert again() == "about 0:02:33 left with 3 workers on 2 hosts"
