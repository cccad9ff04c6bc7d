from __future__ import annotations

from itertools import pairwise

import matplotlib.colors
import numpy as np
import pytest

from cudt.report.figures import ablation_curves, choose
from tests.report.figures import legend_of, make_ablation, named_lines, points_of


def test_the_curves_of_higher_values_are_darker(trained_run, tmp_path):
    groups = make_ablation(trained_run, tmp_path, "descent.alpha", [0.3, 0.1, 0.2, 0.0])
    figure, _ = ablation_curves.draw(
        choose.ablated(groups, "gaussian")["descent.alpha"], "descent.alpha", "gaussian"
    )
    losses, curves = figure.axes
    assert legend_of(figure) == ["α = 0", "α = 0.1", "α = 0.2", "α = 0.3"]
    weights = np.array([0.299, 0.587, 0.114])
    greys = [
        float(weights @ matplotlib.colors.to_rgb(line.get_color()))
        for line in named_lines(curves).values()
    ]
    assert all(after < before - 0.1 for before, after in pairwise(greys))
    assert points_of(named_lines(curves)["α = 0.3"])[1] == pytest.approx([1.05, 1 - 0.105 - 0.01])
    # Three layers each.
    assert [len(line.get_xydata()) for line in named_lines(losses).values()] == [3] * 4
