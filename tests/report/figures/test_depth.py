from __future__ import annotations

import numpy as np
import pytest

from cudt.report import tables
from cudt.report.figures import depth
from tests.report import make_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def deepen(trained_run, tmp_path, layers=(3, 5, 7), seeds=2, gamma=0.4):
    for objective in ("constrained", "erm"):
        for count in layers:
            for seed in range(seeds):
                better = 0.01 * count if objective == "constrained" else 0.0
                curve = {0.0: 0.8 + better - 0.02 * seed, 0.5: 0.7 + better, 2.0: 0.5 + better}
                losses = np.linspace(1, 0.5, count).tolist()
                changes = {"objective": objective, "losses": losses, "gamma_train": gamma, "seed": seed}
                overrides = [f"model.layers={count}", f"noise.gamma_train={gamma}"]
                run = make_run(trained_run, tmp_path, curve, overrides=overrides, **changes)
                rows = run.read_table("layers")
                run.write_table("layers", rows.assign(gamma=gamma))
    return groups_of(tmp_path)


def test_the_mean_and_the_area_stand_against_depth(trained_run, tmp_path, drawn):
    groups = deepen(trained_run, tmp_path)
    found = depth.depths(groups, "gaussian")
    made = depth.depth_effect(found, "gaussian", tmp_path / "stem")
    mean, area = drawn[0].axes
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
    assert "gaussian noise, 0 to 2, against depth, 2 seeds a point" in made.title


def test_each_level_of_training_has_a_column(trained_run, tmp_path, drawn):
    deepen(trained_run, tmp_path, seeds=1)
    found = depth.depths(deepen(trained_run, tmp_path, seeds=1, gamma=0.2), "gaussian")
    depth.depth_effect(found, "gaussian", tmp_path / "stem")
    assert [axes.get_title() for axes in drawn[0].axes] == ["γ_train = 0.2", "γ_train = 0.4", "", ""]
    # A single seed has no spread of its mean.
    assert np.allclose(np.ptp(drawn[0].axes[0].containers[0][2][0].get_segments(), axis=1), 0)


def test_losses_and_curves_are_overlaid_by_depth_for_each_objective(trained_run, tmp_path, drawn):
    groups = deepen(trained_run, tmp_path)
    depth.by_depth(depth.depths(groups, "gaussian"), "gaussian", tmp_path / "stem")
    constrained, erm, constrained_curves, erm_curves = drawn[0].axes
    assert constrained.get_title() == "constrained, 2 seeds"
    assert legend_of(drawn[0]) == ["L = 3", "L = 5", "L = 7"]
    for axes, style in ((constrained, "-"), (erm, "--")):
        assert [len(line.get_xydata()) for line in axes.lines] == [3, 5, 7]
        assert {line.get_linestyle() for line in axes.lines} == {style}
        assert points_of(axes.lines[1]) == [[layer + 1, pytest.approx(1 - layer / 8)] for layer in range(5)]
    assert points_of(named_lines(constrained_curves)["L = 7"])[1] == pytest.approx([0.5, 0.77])
    assert points_of(named_lines(erm_curves)["L = 7"])[1] == pytest.approx([0.5, 0.7])


def test_without_all_else_equal_the_best_of_each_depth_is_taken(trained_run, tmp_path):
    for count in (3, 5):
        for alpha in (0.1, 0.2):
            overrides = [f"model.layers={count}", f"descent.alpha={alpha * count / 2}"]
            best = {"epoch": 1, "validation_loss": alpha}
            make_run(trained_run, tmp_path, {0.0: 1.0}, losses=[0.5] * count, overrides=overrides, best=best)
    ((_, found),) = depth.depths(groups_of(tmp_path), "gaussian").items()
    assert [group.settings["descent.alpha"] for group in found["constrained"]] == pytest.approx([0.15, 0.25])


def test_one_depth_has_no_effect(trained_run, tmp_path):
    assert depth.depths(deepen(trained_run, tmp_path, layers=(3,)), "gaussian") == {}
