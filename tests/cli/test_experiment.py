from __future__ import annotations

import pandas as pd
import pytest

from cudt.evaluation import evaluate
from cudt.runs.run import open_run
from cudt.training import train as training
from cudt.utils.errors import TrainingStoppedError
from tests.cli.conftest import SMALL, contents
from tests.conftest import tiny_recipe

pytestmark = pytest.mark.usefixtures("no_figures")


def test_it_trains_evaluates_and_reports_and_does_nothing_twice(call, tmp_path, monkeypatch):
    command = [
        "experiment",
        "reviews-ut",
        *SMALL,
        "--seeds",
        "0",
        "1",
        "--perturbation",
        "uniform",
        "--device",
        "cpu",
    ]
    code, output, error = call(*command)
    assert code == 0
    # Two epochs are too few for ERM to reach what α asks of the last layer.
    assert all(
        line.startswith("warning: descent.alpha asks the last layer for")
        for line in error.splitlines()
    )
    runs = [open_run(path) for path in sorted(tmp_path.glob("outputs/reviews-ut/*"))]
    expected = {
        f"{name}-{tiny_recipe(objective=name, seed=seed).identity()}"
        for name in ("erm", "constrained")
        for seed in (0, 1)
    }
    assert {run.path.name for run in runs} == expected
    for run in runs:
        ood = run.read_table("ood")
        assert ood["noise"].unique().tolist() == ["uniform"]
        assert ood["gamma"].unique().tolist() == [0, 0.5, 1]
    table = pd.read_csv(tmp_path / "outputs/report-reviews-ut/table.csv")
    assert table[["objective", "seeds"]].to_numpy().tolist() == [["constrained", 2], ["erm", 2]]
    assert "report: outputs/report-reviews-ut/index.html" in output
    assert "next:" not in output

    before = contents(tmp_path / "outputs/reviews-ut")
    monkeypatch.setattr(evaluate, "load", lambda *_: pytest.fail("evaluated again"))
    code, output, _ = call(*command)
    assert code == 0
    assert output.count("already finished: ") == output.count("already evaluated: ") == 4
    assert contents(tmp_path / "outputs/reviews-ut") == before


def test_a_noise_that_is_new_is_evaluated_in_addition(call, tmp_path):
    command = ["experiment", "reviews-ut", *SMALL, "--objectives", "erm", "--device", "cpu"]
    assert call(*command)[0] == 0
    code, output, _ = call(*command, "--perturbation", "gaussian", "uniform")
    assert code == 0
    assert "already evaluated" not in output
    (path,) = tmp_path.glob("outputs/reviews-ut/*")
    assert open_run(path).read_table("ood")["noise"].unique().tolist() == [
        "gaussian",
        "uniform",
    ]


def test_the_runs_that_finish_are_reported_though_another_one_stops(call, monkeypatch, tmp_path):
    train = training.train

    def stop_erm(recipe, *rest, **more):
        if recipe.settings.objective == "erm":
            raise TrainingStoppedError("the loss is not finite")
        return train(recipe, *rest, **more)

    monkeypatch.setattr(training, "train", stop_erm)
    code, _, error = call("experiment", "reviews-ut", *SMALL, "--device", "cpu")
    assert (code, error) == (1, "stopped: the loss is not finite\n")
    table = pd.read_csv(tmp_path / "outputs/report-reviews-ut/table.csv")
    assert table["objective"].tolist() == ["constrained"]
