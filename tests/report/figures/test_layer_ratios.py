from __future__ import annotations

from typing import Any

import pytest

from cudt.report.figures import layer_ratios
from cudt.runs.tables import TABLES
from tests.report import make_run
from tests.report.figures import draw, groups_of, legend_of, points_of


def test_ratios_are_drawn_as_density_and_distribution(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 1.0}, steps=(0.5, 0.25, 0.25), overrides=["descent.alpha=0.2"])
    make_run(trained_run, tmp_path, {0.0: 1.0}, objective="erm", old=True)
    figure, _ = layer_ratios.draw(groups_of(tmp_path), "gaussian")
    density, distribution = figure.axes
    (stairs,) = density.patches
    # Half of the ratios are below 1, a quarter from 1 to 2; the bin above 2 has no right end.
    assert stairs.get_data().values.tolist() == [0.5, 0.25]
    assert stairs.get_data().edges.tolist() == [0, 1, 2]
    assert points_of(distribution.lines[0]) == [[0, 0], [1, 0.5], [2, 0.75]]
    assert legend_of(figure) == ["constrained (1 seed)", "1 − α = 0.8"]


@pytest.mark.parametrize("missing", ["", ",".join(TABLES["ratio_bins"]) + "\n"], ids=["no file", "no rows"])
def test_ratios_are_drawn_if_one_of_the_runs_has_them(missing, trained_run, tmp_path, drawn):
    run = make_run(trained_run, tmp_path / "b", {0.0: 1.0}, objective="erm")
    bare = make_run(trained_run, tmp_path / "a", {0.0: 1.0}, objective="supervised", old=True)
    if missing:
        (bare.path / "ratio_bins.csv").write_text(missing)

    def has_ratios(*folders: Any) -> bool:
        made = draw(groups_of(*folders), tmp_path / "figures")
        return any("layer ratios" in figure.title for figure in made)

    assert has_ratios(bare.path, run.path)
    assert not has_ratios(bare.path)


@pytest.mark.parametrize(("kind", "level"), [("gaussian", "γ = 0.4"), ("discrete", "p = 0")])
def test_the_title_says_at_which_noise_level_ratios_are_measured(kind, level, trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 1.0, 0.5: 0.8}, kind=kind)
    _, title = layer_ratios.draw(groups_of(tmp_path), kind)
    assert title == f"reviews-ut: layer ratios per example, {level} of {kind} noise, 1 seed"
