from __future__ import annotations

from cudt.report.figures import layer_ratios
from tests.report import make_run
from tests.report.figures import groups_of, legend_of, points_of


def test_ratios_are_drawn_as_density_and_distribution(trained_run, tmp_path):
    make_run(
        trained_run, tmp_path, {0.0: 1.0}, steps=(0.5, 0.25, 0.25), overrides=["descent.alpha=0.2"]
    )
    make_run(trained_run, tmp_path, {0.0: 1.0}, objective="erm", old=True)
    figure, _ = layer_ratios.draw(groups_of(tmp_path), "gaussian")
    density, distribution = figure.axes
    (stairs,) = density.patches
    # Half of the ratios are below 1, a quarter from 1 to 2; the bin above 2 has no right end.
    assert stairs.get_data().values.tolist() == [0.5, 0.25]
    assert stairs.get_data().edges.tolist() == [0, 1, 2]
    assert points_of(distribution.lines[0]) == [[0, 0], [1, 0.5], [2, 0.75]]
    assert legend_of(figure) == ["constrained (1 seed)", "1 − α = 0.8"]
