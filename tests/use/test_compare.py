"""`cudt compare`: settings, layers and curves of two runs, against their tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cudt.method import theory
from cudt.report import compare, frames, paired
from cudt.runs.info import RunInfo
from tests.planted import make_run, make_scored_run, make_video_run, plant_layers

LEVELS = (0.0, 0.4, 1.0)


def scores(seed: int, n: int = 40) -> dict[float, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {level: (generator.random(n) < 0.8 - 0.2 * level).astype(float) for level in LEVELS}


@pytest.fixture
def pair(call, trained_run) -> tuple[Path, Path]:
    a = make_scored_run(trained_run, Path("a"), scores(0), objective="erm")
    b = make_scored_run(trained_run, Path("b"), scores(1), overrides=["descent.alpha=0.2"])
    plant_layers(b, {1.0: (0.8, 0.4, 0.5)})
    return a.path, b.path


def compared(call, *arguments: str | Path) -> str:
    code, output, error = call("compare", *arguments)
    assert (code, error) == (0, "")
    return output


def row(output: str, start: str) -> list[str]:
    (line,) = (line for line in output.splitlines() if line.strip().startswith(start))
    return line.split()


def test_settings_that_differ_are_listed_and_no_others(call, pair):
    output = compared(call, *pair)
    assert row(output, "objective") == ["objective", "erm", "constrained"]
    assert row(output, "descent.alpha") == ["descent.alpha", "0.1", "0.2"]
    assert "training." not in output


def test_curves_have_the_difference_with_its_interval_and_how_far_losses_moved(call, pair):
    output = compared(call, *pair)
    runs = frames.read_two(*pair)
    compare.assign(runs)
    for one in paired.Differences(runs).rows("gaussian", [1], [0]):
        if one["quantity"] == "ood_mean":
            numbers = [f"{one[name]:+.4f}" for name in ("difference", "low", "high")]
            assert row(output, "mean OOD")[2:] == [*numbers[:2], "to", numbers[2]]
    # From (0.6, 0.5, 0.4) at γ_train = 0.4: one rises by 0.2, another falls by 0.1.
    assert row(output, "γ = 1 ")[-1] == "0.3000"
    assert "no interval" not in output


def test_the_quantities_of_the_theory_are_those_computed_by_hand():
    rates = theory.achieved_rates([0.6, 0.3, 0.15, 0.18], 0.75)
    assert rates == pytest.approx([0.2, 0.5, 0.5, -0.2])
    assert theory.distribution_shift([0.7, 0.5], [0.6, 0.3]) == pytest.approx(0.2)
    assert theory.estimation_gap([0.6, 0.3], [0.7, 0.5]) == pytest.approx(0.2)
    # Losses that move in opposite directions change a violation by more than each of them.
    generator = np.random.default_rng(0)
    for _ in range(200):
        before, after = generator.uniform(0.01, 2, (2, 4))
        rate = generator.uniform(0, 0.9, 4)
        grown = np.diff([0.7, *after]) + rate * np.array([0.7, *after[:-1]])
        grown -= np.diff([0.7, *before]) + rate * np.array([0.7, *before[:-1]])
        shift = theory.distribution_shift(after.tolist(), before.tolist())
        assert grown.max() <= shift + 1e-12


def test_what_cannot_be_compared_is_named(call, trained_run):
    a = make_scored_run(trained_run, Path("a"), scores(0))
    other_task = make_scored_run(trained_run, Path("b"), scores(1), overrides=["task.train=80"])
    output = compared(call, a.path, other_task.path)
    assert "no interval: the runs have different test data" in output
    video = make_video_run(trained_run, Path("c"), {0.0: 20.0}, objective="erm")
    assert "no curves: the metrics are accuracy and RMSE" in compared(call, a.path, video.path)
    new = make_run(trained_run, Path("d"), None, objective="erm")
    output = compared(call, a.path, new.path)
    assert f"not evaluated yet; run: cudt eval-ood {new.path}" in output


def test_wrong_input_is_refused(call, pair, trained_run):
    running = make_run(trained_run, Path("running"), None)
    running.update_info(RunInfo(status="running"))
    Path("empty").mkdir()
    for other in (Path("gone"), Path("empty"), running.path):
        assert call("compare", pair[0], other)[0] == 2
