from __future__ import annotations

import numpy as np
import pytest

from cudt.report.figures import early_exit
from tests.report import make_run, plant_exits
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def test_accuracy_is_drawn_against_depth_at_the_training_and_the_highest_level(
    trained_run, tmp_path
):
    for objective in ("constrained", "erm"):
        for seed in range(2):
            run = make_run(
                trained_run, tmp_path, {0.0: 1.0, 2.0: 0.8}, objective=objective, seed=seed
            )
            plant_exits(run, (0.0, 0.4, 1.0, 2.0), shift=0.2 * seed)
    figure, title = early_exit.draw(groups_of(tmp_path), "gaussian")
    wanted = [
        f"{rule}, γ = {level}"
        for rule in ("confidence", "patience")
        for level in ("0.4 (γ_train)", "2")
    ]
    assert [axes.get_title() for axes in figure.axes] == wanted
    for axes, gamma in zip(figure.axes, (0.4, 2.0) * 2, strict=True):
        lines = named_lines(axes)
        assert list(lines) == ["constrained (2 seeds)", "erm (2 seeds)"]
        points = [[1.1, 0.6 - 0.1 * gamma], [2, 0.8 - 0.1 * gamma], [3, 0.9 - 0.1 * gamma]]
        for line in lines.values():
            assert np.allclose(points_of(line), points)
        stars = [line for line in axes.lines if line.get_marker() == "*"]
        assert [points_of(star)[0] for star in stars] == [pytest.approx(points[1])] * 2
    assert legend_of(figure) == ["constrained (2 seeds)", "erm (2 seeds)"]
    assert title.startswith("reviews-ut: early exit under gaussian noise, 2 seeds (")


def test_groups_without_early_exits_are_left_out(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, {0.0: 1.0, 2.0: 0.8})
    make_run(trained_run, tmp_path, {0.0: 1.0, 2.0: 0.8}, objective="erm")
    assert list(early_exit.FIGURE.of_recipe(groups_of(tmp_path))) == []
    plant_exits(run, (0.0, 2.0))
    (plan,) = early_exit.FIGURE.of_recipe(groups_of(tmp_path))
    figure, _ = plan.draw()
    # The level of training is missing.
    assert [axes.get_title() for axes in figure.axes] == ["confidence, γ = 2", "patience, γ = 2"]
    assert list(named_lines(figure.axes[0])) == ["constrained (1 seed)"]
