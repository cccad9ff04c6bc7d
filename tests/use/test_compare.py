from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cudt.report import compare, frames, paired
from cudt.runs.info import RunInfo
from cudt.runs.run import Run
from tests.cli.conftest import call
from tests.planted import make_run, make_scored_run, make_video_run, plant_layers

__all__ = ["call"]
LEVELS = (0.0, 0.4, 1.0)


def scores(seed: int, n: int = 40) -> dict[float, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {level: (generator.random(n) < 0.8 - 0.2 * level).astype(float) for level in LEVELS}


@pytest.fixture
def pair(call, trained_run) -> tuple[Path, Path]:
    a = make_scored_run(
        trained_run, Path("a"), scores(0), objective="erm", feasible=False, monotone=True
    )
    b = make_scored_run(trained_run, Path("b"), scores(1), overrides=["descent.alpha=0.2"])
    return a.path, b.path


def compared(call, *paths: Path) -> str:
    code, output, error = call("compare", *paths)
    assert (code, error) == (0, "")
    return output


def row(output: str, start: str) -> list[str]:
    (line,) = (line for line in output.splitlines() if line.strip().startswith(start))
    return re.split(r"\s{2,}", line.strip())


def test_settings_that_differ_are_listed_and_no_others(call, pair):
    output = compared(call, *pair)
    assert row(output, "objective") == ["objective", "erm", "constrained"]
    assert row(output, "descent.alpha") == ["descent.alpha", "0.1", "0.2"]
    assert "training." not in output
    assert "seed 0" in output.splitlines()[0]


def test_curves_are_shown_with_the_difference_and_its_interval(call, pair):
    output = compared(call, *pair)
    runs = frames.read_two(*pair)
    compare.assign(runs)
    expected = pd.DataFrame(paired.Differences(runs).rows("gaussian", [1], [0]))
    for _, one in expected[expected["quantity"] == "metric"].iterrows():
        both = [runs.curve(run, "gaussian")[one["gamma"]] for run in (0, 1)]
        assert row(output, f"γ = {one['gamma']:g} ") == [
            f"γ = {one['gamma']:g}",
            *(f"{value:.4f}" for value in both),
            f"{both[1] - both[0]:+.4f}",
            f"{one['low']:+.4f} to {one['high']:+.4f}",
        ]
    ood = expected[expected["quantity"] == "ood_mean"].iloc[0]
    assert row(output, "mean OOD")[3:] == [
        f"{ood['difference']:+.4f}",
        f"{ood['low']:+.4f} to {ood['high']:+.4f}",
    ]
    assert float(row(output, "mean OOD")[2]) == pytest.approx(
        runs.curve(1, "gaussian")[1.0], abs=1e-4
    )
    assert "no interval" not in output
    assert max(len(line) for line in output.splitlines()[2:]) <= 80


def test_layer_losses_and_verdicts_are_shown_for_both(call, pair, trained_run):
    output = compared(call, *pair)
    for verdict in trained_run.finished_info().verdicts:
        loss = f"{verdict.loss:.4f}"
        found = row(output, f"{verdict.layer} ")[:6]
        assert found == [str(verdict.layer), loss, loss, "+0.0000", *[verdict.verdict] * 2]
    assert "A: not feasible; not every layer lowers the loss" in output


def test_runs_of_different_recipes_are_compared_on_the_same_test_data(call, trained_run):
    a = make_scored_run(
        trained_run, Path("a"), scores(0), name="one", test_data="same", overrides=["task.train=80"]
    )
    b = make_scored_run(trained_run, Path("b"), scores(1), name="two", test_data="same")
    output = compared(call, a.path, b.path)
    assert row(output, "recipe") == ["recipe", "one", "two"]
    assert len(row(output, "γ = 1 ")) == 5
    assert "no interval" not in output


def test_runs_with_different_losses_have_intervals_of_the_metric_but_no_differences_of_losses(
    call, trained_run
):
    a = make_scored_run(trained_run, Path("a"), scores(0))
    b = make_scored_run(trained_run, Path("b"), scores(1), overrides=["task.loss=brier"])
    output = compared(call, a.path, b.path)
    assert len(row(output, "γ = 1 ")) == 5
    assert "no interval" not in output
    # Two losses and two verdicts, without a difference.
    assert row(output, "1 ")[3:5] == ["violated", "violated"]
    assert (
        "no differences: task.loss is cross_entropy in A and brier in B, so the losses have"
        in output
    )


def test_different_metrics_and_missing_evaluations_are_named(call, trained_run):
    a = make_run(trained_run, Path("a"), {0.0: 0.9})
    b = make_video_run(trained_run, Path("b"), {0.0: 20.0}, objective="erm")
    assert "the metrics differ (accuracy and RMSE)" in compared(call, a.path, b.path)
    c = make_run(trained_run, Path("c"), None, objective="erm")
    output = compared(call, a.path, c.path)
    assert f"B is not evaluated yet; run: cudt eval-ood {c.path}" in output
    d = make_run(trained_run, Path("d"), {0.0: 0.9}, objective="erm", kind="uniform")
    assert "no noise in common: A has gaussian, B has uniform" in compared(call, a.path, d.path)


def test_runs_are_compared_with_their_last_weights_on_test_data(call, trained_run):
    runs = [
        make_scored_run(trained_run, Path(name), scores(n), seed=n) for n, name in enumerate("ab")
    ]
    paths = [run.path for run in runs]
    assert "not measured yet" in compared(call, *paths, "--weights", "last")
    for run, losses in zip(runs, ((0.6, 0.5, 0.4), (0.7, 0.75, 0.3)), strict=True):
        plant_layers(run, {0.4: losses}, weights="last")
    output = compared(call, *paths, "--weights", "last")
    assert "layer losses on test data" in output
    assert row(output, "2 ")[:4] == ["2", "0.5000", "0.7500", "+0.2500"]
    assert "not every layer lowers the loss" in output


def test_wrong_input_is_refused(call, pair, trained_run):
    running = make_run(trained_run, Path("running"), None)
    running.update_info(RunInfo(status="running"))
    Path("empty").mkdir()
    for other, message in (
        (pair[0], f"run folder '{pair[0]}' is given twice"),
        (Path("gone"), "run folder 'gone' does not exist"),
        (Path("empty"), "no run.json"),
        (running.path, "running"),
    ):
        code, _, error = call("compare", pair[0], other)
        assert code == 2
        assert error.startswith("error: ")
        assert message in error
        assert len(error.splitlines()) == 1


def test_effective_weights_at_the_end_of_the_runs_epoch_are_shown_and_negative_ones_marked(
    call, trained_run
):
    def make(name: str, multipliers: object) -> Run:
        return make_run(
            trained_run, Path(name), seed=ord(name), best={"epoch": 1}, multipliers=multipliers
        )

    # w_1 = 0.2 − 0.9·0.5.
    a, b = make("a", None), make("b", {"best": [0.2, 0.5, 0.0], "last": [0.0, 0.0, 0.0]})
    output = compared(call, a.path, b.path)
    heading = next(line for line in output.splitlines() if "verdict A" in line)
    assert heading.split()[-2:] == ["w", "B"]
    assert row(output, "1 ")[-1] == "-0.25 ▼"
    assert row(output, "2 ")[-1] == "0.5"
    assert "▼ negative weight w" in output
    assert "▼" not in compared(
        call, a.path, make("c", {"best": [0.0, 0.0, 0.0], "last": [0.2, 0.5, 0.0]}).path
    )
