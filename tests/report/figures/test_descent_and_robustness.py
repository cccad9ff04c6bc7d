from __future__ import annotations

import numpy as np
import pytest

from cudt.report.figures import descent_and_robustness
from tests.report import make_run, make_video_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def test_layer_losses_are_those_of_the_test_split_at_the_training_level(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, losses=(0.6, 0.5, 0.4))
    descent_and_robustness.draw_layer_losses(axes, groups_of(tmp_path), "gaussian")
    line, reference = axes.lines
    assert np.allclose(points_of(line), [[1, 0.6], [2, 0.5], [3, 0.4]])
    assert reference.get_ydata()[0] == trained_run.finished_info().reference
    assert axes.texts[0].get_text() == "$f_0$"


def test_a_label_counts_the_runs_that_the_best_was_selected_from(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, seed=0)
    make_run(trained_run, tmp_path, None, seed=1)
    make_run(trained_run, tmp_path, None, objective="erm")
    figure, title = descent_and_robustness.draw(groups_of(tmp_path), "gaussian")
    assert legend_of(figure) == ["constrained (best of 2)"]
    level = "γ_train = 0.4; the paper's figure has 0.2"
    assert title == f"reviews-ut: loss by layer, and accuracy under gaussian noise, best of 2 ({level})"


def test_each_variant_is_drawn_at_its_own_training_level(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path / "a", {0.0: 1.0}, variant="aaaa")
    other = make_run(trained_run, tmp_path / "b", {0.0: 1.0}, variant="bbbb", gamma_train=0.2)
    layers = other.read_table("layers")
    other.write_table("layers", layers.assign(gamma=0.2))
    descent_and_robustness.draw_layer_losses(axes, groups_of(tmp_path), "gaussian")
    assert all(len(line.get_xydata()) == 3 for line in axes.lines[:2])


def test_of_several_variants_the_pair_is_drawn_and_the_title_says_so(trained_run, tmp_path):
    for index in range(12):
        best = {"epoch": 1, "validation_loss": 1.0 - 0.01 * index}
        overrides = [f"descent.alpha={0.01 * index + 0.01}", f"descent.beta={index + 1}", "descent.resilience=decay"]
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.01 * index}, overrides=overrides, best=best)
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, objective="erm")
    figure, title = descent_and_robustness.draw(groups_of(tmp_path), "gaussian")
    curves = named_lines(figure.axes[1])
    assert list(curves) == ["constrained (best of 12)", "erm (best of 1)"]
    assert points_of(curves["constrained (best of 12)"])[1] == pytest.approx([1.0, 0.11])
    assert "best of 1 to 12 (2 of 13 variants, those of the first table; γ_train = 0.4; the paper's" in title


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ((2e5, 9e4, 2.1e4), "linear"),
        ((4e5, 9e4, 1.9e4), "log"),
        ((4e5, 9e4, 0.0), "linear"),
        # Every layer is far below f_0.
        ((10.0, 9.0, 8.0), "log"),
    ],
)
def test_losses_that_differ_many_times_have_a_logarithmic_axis(losses, scale, trained_run, tmp_path, axes):
    make_video_run(trained_run, tmp_path, {0.0: 10.0}, losses=losses, reference=4e5)
    descent_and_robustness.draw_layer_losses(axes, groups_of(tmp_path), "gaussian")
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low <= min(losses)
    assert high >= 4e5
    assert (low == 0) == (scale == "linear")


def test_the_metric_of_a_causal_model_is_the_accuracy_of_tokens(trained_run, tmp_path):
    metric = {"name": "token_accuracy", "higher_is_better": True, "of_mean": "mean"}
    run = make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.7}, metric=metric)
    ood = run.read_table("ood")
    run.write_table("ood", ood.assign(metric=ood["metric"].str.replace("accuracy", "token_accuracy")))
    figure, _ = descent_and_robustness.draw(groups_of(tmp_path), "gaussian")
    assert figure.axes[1].get_ylabel() == "test token accuracy"
    assert np.allclose(points_of(figure.axes[1].lines[0]), [[0, 0.9], [1, 0.7]])
