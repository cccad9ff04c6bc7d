from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cudt.report.figures import privacy
from cudt.runs.run import Run
from cudt.runs.tables import TABLES
from tests.report import make_run
from tests.report.figures import groups_of, named_lines, points_of


def make_private(
    trained_run: Run, out: Path, epsilons: dict[float, float], *, delta: float = 1e-5, **changes: object
) -> None:
    """A run with these ε at each level, ten times as much for a text."""
    run = make_run(trained_run, out, {0.0: 0.9, 1.0: 0.7, 2.0: 0.5}, **changes)  # type: ignore[arg-type]
    rows = [
        (gamma, gamma, unit, 1.0, delta, times * epsilon, "accuracy", 0.1)
        for gamma, epsilon in {0.0: math.inf, **epsilons}.items()
        for unit, times in (("token", 1), ("text", 10))
    ]
    run.merge_table("privacy", pd.DataFrame(rows, columns=TABLES["privacy"]), ["delta"])


def test_the_metric_of_the_curve_is_drawn_against_the_mean_epsilon_of_a_token(trained_run, tmp_path):
    make_private(trained_run, tmp_path, {1.0: 100.0, 2.0: 40.0})
    make_private(trained_run, tmp_path, {1.0: 400.0, 2.0: 90.0}, seed=1)
    make_private(trained_run, tmp_path, {1.0: 300.0, 2.0: 50.0}, objective="erm")
    (plan,) = privacy.FIGURE.of_recipe(groups_of(tmp_path))
    figure, title = plan.draw()
    lines = named_lines(figure.axes[0])
    assert np.allclose(points_of(lines["constrained (2 seeds)"]), [[60, 0.5], [200, 0.7]])
    assert np.allclose(points_of(lines["erm (1 seed)"]), [[50, 0.5], [300, 0.7]])
    assert figure.axes[0].get_xscale() == "log"
    assert "δ = 1e-05" in figure.axes[0].get_xlabel()
    assert title == (
        "reviews-ut: accuracy against privacy, 1 to 2 seeds; γ = 0 is left out: without noise, ε is infinite"
    )


@pytest.mark.parametrize("epsilon", [0.1, 40.0])
def test_all_of_the_axis_up_to_the_limit_is_shaded(epsilon, trained_run, tmp_path):
    make_private(trained_run, tmp_path, {1.0: 100.0, 2.0: epsilon})
    (plan,) = privacy.FIGURE.of_recipe(groups_of(tmp_path))
    axes = plan.draw().figure.axes[0]
    shaded = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (shaded.x0, shaded.x1) == pytest.approx((axes.get_xlim()[0], 10))
    assert shaded.x0 <= min(epsilon, 5.001)


def test_without_privacy_csv_there_is_no_figure(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.7})
    assert not list(privacy.FIGURE.of_recipe(groups_of(tmp_path)))


def test_a_group_with_a_run_without_privacy_csv_is_left_out(trained_run, tmp_path):
    make_private(trained_run, tmp_path, {1.0: 100.0}, objective="erm")
    make_private(trained_run, tmp_path, {1.0: 100.0})
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.7}, seed=1)
    (plan,) = privacy.FIGURE.of_recipe(groups_of(tmp_path))
    assert list(named_lines(plan.draw().figure.axes[0])) == ["erm (1 seed)"]


@pytest.mark.parametrize("deltas", [(1e-5, 1e-5, 1e-8), (1e-5, 1e-5, 1e-3)])
def test_the_delta_that_most_groups_have_is_drawn(deltas, trained_run, tmp_path):
    for objective, delta in zip(("constrained", "erm", "supervised"), deltas, strict=True):
        make_private(trained_run, tmp_path, {1.0: 100.0}, objective=objective, delta=delta)
    (plan,) = privacy.FIGURE.of_recipe(groups_of(tmp_path))
    assert list(named_lines(plan.draw().figure.axes[0])) == ["constrained (1 seed)", "erm (1 seed)"]
