from __future__ import annotations

from cudt.report.figures import curves, descent_and_robustness
from tests.report import make_run
from tests.report.figures import groups_of


def test_a_single_seed_without_an_interval_has_no_band(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, old=True)
    groups = groups_of(tmp_path)
    curves.draw_curves(axes, groups, "gaussian")
    descent_and_robustness.draw_layer_losses(axes, groups, "gaussian")
    assert not axes.collections
