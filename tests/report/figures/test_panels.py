from __future__ import annotations

import math

import numpy as np
import pytest

from cudt.report import objectives
from cudt.report.figures import panels


@pytest.mark.parametrize(
    ("values", "scale", "low"),
    [
        ([math.nan, math.inf], "linear", None),
        ([], "linear", None),
        ([0.0, 0.0], "linear", 0.0),
        ([-1.0, 100.0], "linear", None),
        ([1.0, 30.0, math.nan], "log", None),
        ([1.0, 3.0, math.inf], "linear", 0.0),
        # Similar losses: from 0 on, they would be one flat line.
        ([0.70, 0.71], "linear", None),
    ],
)
def test_the_y_axis_fits_losses_of_any_size(values, scale, low, axes):
    panels.scale_losses(axes, values)
    assert axes.get_yscale() == scale
    assert all(math.isfinite(end) for end in axes.get_ylim())
    if low is not None:
        assert axes.get_ylim()[0] == low


def test_values_that_are_not_finite_leave_gaps(axes):
    ends = ([0, -math.inf, math.nan], [2, 2, math.nan])
    panels.line(axes, [0, 1, 2], [1, math.inf, math.nan], *ends, "a", objectives.style("erm"))
    assert np.isfinite(axes.lines[0].get_ydata()).tolist() == [True, False, False]
    panels.points(axes, [0, 1, 2], [1, math.inf, 3], *ends, "b", objectives.style("erm"))
    axes.figure.draw_without_rendering()


def test_the_legend_names_each_line_once_and_is_left_out_without_lines():
    figure, grid = panels.panels(1, 2)
    panels.legend_below(figure)
    assert figure.legends == []
    for axes in grid.flat:
        axes.plot([0, 1], label="a")
    panels.legend_below(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a"]
