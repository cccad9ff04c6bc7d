from __future__ import annotations

import pytest

from cudt.report.figures import by_depth
from cudt.report.figures.depths import depths
from tests.report.figures import legend_of, make_depths, named_lines, points_of


def test_each_objective_has_a_column_with_a_line_for_each_depth(trained_run, tmp_path):
    groups = make_depths(trained_run, tmp_path)
    figure, _ = by_depth.draw(depths(groups, "gaussian"), "gaussian")
    constrained, erm, constrained_curves, erm_curves = figure.axes
    assert constrained.get_title() == "constrained, 2 seeds"
    assert legend_of(figure) == ["L = 3", "L = 5", "L = 7"]
    for axes, style in ((constrained, "-"), (erm, "--")):
        assert [len(line.get_xydata()) for line in axes.lines] == [3, 5, 7]
        assert {line.get_linestyle() for line in axes.lines} == {style}
        assert points_of(axes.lines[1]) == [
            [layer + 1, pytest.approx(1 - layer / 8)] for layer in range(5)
        ]
    assert points_of(named_lines(constrained_curves)["L = 7"])[1] == pytest.approx([0.5, 0.77])
    assert points_of(named_lines(erm_curves)["L = 7"])[1] == pytest.approx([0.5, 0.7])
