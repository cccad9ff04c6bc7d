from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudt.report import figures
from cudt.report.collect import collect
from cudt.report.figures import descent
from cudt.runs.run import TABLES
from tests.report import REACH, make_run, make_video_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def test_curves_are_means_with_a_band_over_seeds(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, seed=0)
    make_run(trained_run, tmp_path, {0.0: 0.8, 1.0: 0.4}, seed=1)
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.3}, objective="erm")
    descent.draw_curves(axes, groups_of(tmp_path), "gaussian")
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


def test_a_single_seed_without_interval_has_no_band(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, old=True)
    groups = groups_of(tmp_path)
    descent.draw_curves(axes, groups, "gaussian")
    descent.draw_layer_losses(axes, groups, "gaussian")
    assert not axes.collections


def test_ratios_are_drawn_as_density_and_distribution(trained_run, tmp_path, drawn):
    make_run(trained_run, tmp_path, {0.0: 1.0}, steps=(0.5, 0.25, 0.25), overrides=["descent.alpha=0.2"])
    make_run(trained_run, tmp_path, {0.0: 1.0}, objective="erm", old=True)
    descent.layer_ratios(groups_of(tmp_path), "gaussian", tmp_path / "stem")
    density, distribution = drawn[0].axes
    (stairs,) = density.patches
    # Half of the steps below 1, a quarter from 1 to 2; what is above 2 has no end.
    assert stairs.get_data().values.tolist() == [0.5, 0.25]
    assert stairs.get_data().edges.tolist() == [0, 1, 2]
    assert points_of(distribution.lines[0]) == [[0, 0], [1, 0.5], [2, 0.75]]
    assert legend_of(drawn[0]) == ["constrained (1 seed)", "1 − α = 0.8"]


@pytest.mark.parametrize("missing", ["", ",".join(TABLES["ratio_bins"]) + "\n"], ids=["no file", "no rows"])
def test_a_run_without_ratios_does_not_keep_others_from_being_drawn(missing, trained_run, tmp_path, drawn):
    run = make_run(trained_run, tmp_path / "b", {0.0: 1.0}, objective="erm")
    bare = make_run(trained_run, tmp_path / "a", {0.0: 1.0}, objective="supervised", old=True)
    if missing:
        (bare.path / "ratio_bins.csv").write_text(missing)

    def has_ratios(*folders: Any) -> bool:
        made = figures.draw(collect(folders).runs, tmp_path / "figures").figures
        return any("layer ratios" in figure.title for figure in made)

    assert has_ratios(bare.path, run.path)
    assert not has_ratios(bare.path)


@pytest.mark.parametrize(("kind", "level"), [("gaussian", "γ = 0.4"), ("discrete", "p = 0")])
def test_a_title_says_at_which_level_layers_are_compared(kind, level, trained_run, tmp_path, drawn):
    make_run(trained_run, tmp_path, {0.0: 1.0, 0.5: 0.8}, kind=kind)
    made = descent.layer_ratios(groups_of(tmp_path), kind, tmp_path / "stem")
    assert made.title == f"reviews-ut: layer ratios per example, {level} of {kind} noise, 1 seed"


def test_layer_losses_are_those_of_the_test_split_at_the_training_level(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, losses=(0.6, 0.5, 0.4))
    descent.draw_layer_losses(axes, groups_of(tmp_path), "gaussian")
    line, reference = axes.lines
    assert np.allclose(points_of(line), [[1, 0.6], [2, 0.5], [3, 0.4]])
    assert reference.get_ydata()[0] == trained_run.finished_info().reference
    assert axes.texts[0].get_text() == "$f_0$"


def test_a_label_counts_the_seeds_that_are_drawn(trained_run, tmp_path, drawn):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, seed=0)
    make_run(trained_run, tmp_path, None, seed=1)
    make_run(trained_run, tmp_path, None, objective="erm")
    made = descent.descent_and_robustness(groups_of(tmp_path), "gaussian", tmp_path / "stem")
    assert legend_of(drawn[0]) == ["constrained (1 seed)"]
    assert made.title == "reviews-ut: loss by layer, and accuracy under gaussian noise, 1 seed"


def test_each_variant_is_drawn_at_its_own_training_level(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path / "a", {0.0: 1.0}, variant="aaaa")
    other = make_run(trained_run, tmp_path / "b", {0.0: 1.0}, variant="bbbb", gamma_train=0.2)
    layers = other.read_table("layers")
    other.write_table("layers", layers.assign(gamma=0.2))
    descent.draw_layer_losses(axes, groups_of(tmp_path), "gaussian")
    assert all(len(line.get_xydata()) == 3 for line in axes.lines[:2])


def test_of_more_variants_than_can_be_told_apart_the_pair_is_drawn_and_said_so(trained_run, tmp_path, drawn):
    for place in range(12):
        best = {"epoch": 1, "validation_loss": 1.0 - 0.01 * place}
        overrides = [f"descent.alpha={0.01 * place + 0.01}", f"descent.beta={place + 1}", "descent.resilience=decay"]
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.01 * place}, overrides=overrides, best=best)
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, objective="erm")
    made = descent.descent_and_robustness(groups_of(tmp_path), "gaussian", tmp_path / "stem")
    curves = named_lines(drawn[0].axes[1])
    assert list(curves) == ["constrained (1 seed)", "erm (1 seed)"]
    assert points_of(curves["constrained (1 seed)"])[1] == pytest.approx([1.0, 0.11])
    assert "(2 of 13 variants: highest γ_train" in made.title


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ((2e5, 9e4, 2.1e4), "linear"),
        ((4e5, 9e4, 1.9e4), "log"),
        ((4e5, 9e4, 0.0), "linear"),
        # Far below f_0 already, in every layer.
        ((10.0, 9.0, 8.0), "log"),
    ],
)
def test_losses_that_differ_many_times_have_a_logarithmic_axis(losses, scale, trained_run, tmp_path, axes):
    make_video_run(trained_run, tmp_path, {0.0: 10.0}, losses=losses, reference=4e5)
    descent.draw_layer_losses(axes, groups_of(tmp_path), "gaussian")
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low <= min(losses)
    assert high >= 4e5
    assert (low == 0) == (scale == "linear")


def test_the_training_levels_are_named_where_the_curve_is_not(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path / "a", {0.0: 0.9})
    make_video_run(trained_run, tmp_path / "b", {0.0: 9})
    for folder in ("a", "b"):
        descent.draw_curves(axes, groups_of(tmp_path / folder), "gaussian")
    below, above = (text.get_position()[1] for text in axes.texts)
    assert below < 0.1
    assert above > 0.9
    assert axes.get_ylabel() == "test RMSE"


def test_a_causal_model_is_judged_by_its_tokens(trained_run, tmp_path, drawn):
    metric = {"name": "token_accuracy", "higher_is_better": True}
    run = make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.7}, metric=metric)
    ood = run.read_table("ood")
    run.write_table("ood", ood.assign(metric=ood["metric"].str.replace("accuracy", "token_accuracy")))
    descent.descent_and_robustness(groups_of(tmp_path), "gaussian", tmp_path / "stem")
    assert drawn[0].axes[1].get_ylabel() == "test token accuracy"
    assert np.allclose(points_of(drawn[0].axes[1].lines[0]), [[0, 0.9], [1, 0.7]])
