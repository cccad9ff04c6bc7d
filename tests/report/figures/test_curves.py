from __future__ import annotations

import numpy as np
import pytest

from cudt.report.figures import curves
from tests.report import INPUT_RMSE, REACH, make_run, make_video_run
from tests.report.figures import groups_of, named_lines, points_of


def test_curves_are_means_with_a_band_over_seeds(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, seed=0)
    make_run(trained_run, tmp_path, {0.0: 0.8, 1.0: 0.4}, seed=1)
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.3}, objective="erm")
    curves.draw_curves(axes, groups_of(tmp_path), "gaussian")
    lines = named_lines(axes)
    assert set(lines) == {"constrained (2 seeds)", "erm (1 seed)"}
    assert np.allclose(points_of(lines["constrained (2 seeds)"]), [[0, 0.9], [1, 0.6]])
    assert np.allclose(points_of(lines["erm (1 seed)"]), [[0, 0.9], [1, 0.3]])
    assert lines["constrained (2 seeds)"].get_linestyle() == "-"
    assert lines["erm (1 seed)"].get_linestyle() == "--"
    over_seeds, over_examples = (band.get_datalim(axes.transData) for band in axes.collections)
    # One standard deviation of 0.8 and 0.4 about 0.6; of a single seed, its interval.
    assert over_seeds.ymin == pytest.approx(0.6 - 0.2 * 2**0.5)
    assert (over_examples.ymin, over_examples.ymax) == pytest.approx((0.3 - REACH, 0.9 + REACH))


def test_the_noisy_input_of_video_is_drawn_once_and_only_for_video(trained_run, tmp_path, axes):
    for objective in ("constrained", "erm"):
        make_video_run(trained_run, tmp_path / "video", {0.0: 9.0, 1.0: 12.0}, objective=objective)
        make_run(trained_run, tmp_path / "text", {0.0: 0.9, 1.0: 0.5}, objective=objective)
    curves.draw_curves(axes, groups_of(tmp_path / "video"), "gaussian")
    (noisy,) = [line for line in axes.lines if line.get_label() == "noisy input"]
    assert noisy.get_xydata().tolist() == [[0, 0], [1, INPUT_RMSE]]
    axes.clear()
    curves.draw_curves(axes, groups_of(tmp_path / "text"), "gaussian")
    assert "noisy input" not in [line.get_label() for line in axes.lines]
