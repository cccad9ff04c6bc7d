from __future__ import annotations

import numpy as np
import pytest

from cudt.report.figures import effective_weights
from tests.report import make_run, plant_weights
from tests.report.figures import groups_of, named_lines, points_of

CURVE = {0.0: 0.9, 1.0: 0.6}


def test_weights_over_the_updates_and_how_often_they_are_negative(trained_run, tmp_path):
    for seed in range(2):
        run = make_run(trained_run, tmp_path, CURVE, seed=seed)
        plant_weights(
            run, [(0.1, 0.2, 1.0), (-0.1, 0.3, 1.1), (-0.2 + seed, 0.4, 1.2), (0.3, 0.5, 1.3)]
        )
    (plan,) = effective_weights.FIGURE.of_recipe(groups_of(tmp_path))
    figure, title = plan.draw()
    weights, shares = figure.axes
    lines = named_lines(weights)
    assert [*lines] == ["layer 1", "layer 2", "layer 3"]
    assert np.allclose(points_of(lines["layer 1"]), [[1, 0.1], [2, -0.1], [3, -0.2], [4, 0.3]])
    marked = [points_of(line) for line in weights.lines if line.get_marker() == "."]
    assert np.allclose(marked[0], [[2, -0.1], [3, -0.2]])
    assert marked[1:] == [[], []]
    assert [bar.get_height() for bar in shares.patches] == pytest.approx([0.375, 0, 0])
    assert "2 seeds" in title


@pytest.mark.parametrize("objective", ["constrained", "erm"])
def test_without_logged_weights_there_is_no_figure(objective, trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, objective=objective)
    assert list(effective_weights.FIGURE.of_recipe(groups_of(tmp_path))) == []
