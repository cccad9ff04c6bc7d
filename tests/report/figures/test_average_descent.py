from __future__ import annotations

import math

import numpy as np
import pytest

from cudt.report.figures import average_descent
from tests.report import make_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def test_the_average_descent_is_a_geometric_mean_of_ratios_to_the_reference(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 1.0}, losses=(0.5, 0.25), reference=1.0, seed=0)
    make_run(trained_run, tmp_path, {0.0: 1.0}, losses=(2.0, 1.0, 0.5, 0.25), reference=4.0, seed=1)
    make_run(trained_run, tmp_path, {0.0: 1.0}, losses=(0.5, -1.0), reference=1.0, objective="erm")
    make_run(
        trained_run,
        tmp_path,
        {0.0: 1.0},
        losses=(0.5, math.inf),
        reference=1.0,
        objective="erm",
        seed=1,
    )
    make_run(
        trained_run, tmp_path, {0.0: 1.0}, losses=(3.0,), reference=1.0, objective="erm", seed=2
    )
    make_run(trained_run, tmp_path, objective="erm", seed=3)
    (plan,) = average_descent.FIGURE.over_recipes([groups_of(tmp_path)])
    figure, title = plan.draw()
    (axes,) = figure.axes
    constrained, erm = (
        np.array(points_of(named_lines(axes)[name])) for name in ("constrained", "erm")
    )
    # Halved twice, and four times: on average three halvings over all layers.
    assert np.allclose(constrained[[0, 12, 24]], [[0, 1], [0.5, 2**-1.5], [1, 2**-3]])
    assert np.allclose(erm[[0, 24]], [[0, 1], [1, 3]])
    band = axes.collections[0].get_datalim(axes.transData)
    assert band.ymin == pytest.approx(2.0 ** (-3 - 2**0.5))
    assert title.startswith("Average descent over 3 runs")
    assert title.endswith(
        "; left out: 1 not evaluated, 2 without positive test losses at this level"
    )
    assert legend_of(figure) == ["constrained", "erm"]
