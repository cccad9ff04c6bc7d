from __future__ import annotations

import numpy as np
import pytest

from cudt.report import tables
from cudt.report.figures import depth_effect
from cudt.report.figures.depths import depths
from tests.report.figures import make_depths, points_of


def test_the_mean_and_the_area_are_drawn_against_depth(trained_run, tmp_path):
    groups = make_depths(trained_run, tmp_path)
    found = depths(groups, "gaussian")
    figure, title = depth_effect.draw(found, "gaussian")
    mean, area = figure.axes
    summary = tables.summary([run for group in groups for run in group.runs])
    for axes, column in ((mean, "grid_mean"), (area, "auc")):
        for container in axes.containers:
            wanted = {
                group.n_layers: summary[summary["variant"] == group.variant][column].iloc[0]
                for group in groups
                if group.objective == container.get_label()
            }
            assert np.allclose(points_of(container[0]), sorted(wanted.items()))
    # Seeds differ by 0.02 at one of three levels.
    low, high = mean.containers[0][2][0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * 0.02 / 3 / 2**0.5)
    assert "gaussian noise, 0 to 2, against depth, 2 seeds per point" in title
