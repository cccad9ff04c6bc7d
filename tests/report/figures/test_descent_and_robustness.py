from __future__ import annotations

import numpy as np
import pytest

from cudt.report.figures import descent_and_robustness
from tests.report import make_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def test_layer_losses_are_those_of_the_test_split_at_the_training_level(
    trained_run, tmp_path, axes
):
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
    assert (
        title
        == f"reviews-ut: loss by layer, and accuracy under gaussian noise, best of 2 ({level})"
    )


def test_of_several_variants_the_pair_is_drawn_and_the_title_says_so(trained_run, tmp_path):
    for index in range(12):
        best = {"epoch": 1, "validation_loss": 1.0 - 0.01 * index}
        overrides = [
            f"descent.alpha={0.01 * index + 0.01}",
            f"descent.beta={index + 1}",
            "descent.resilience=decay",
        ]
        make_run(
            trained_run, tmp_path, {0.0: 0.9, 1.0: 0.01 * index}, overrides=overrides, best=best
        )
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, objective="erm")
    figure, title = descent_and_robustness.draw(groups_of(tmp_path), "gaussian")
    curves = named_lines(figure.axes[1])
    assert list(curves) == ["constrained (best of 12)", "erm (best of 1)"]
    assert points_of(curves["constrained (best of 12)"])[1] == pytest.approx([1.0, 0.11])
    assert (
        "best of 1 to 12 (2 of 13 variants, those of the first table; γ_train = 0.4; the paper's"
        in title
    )
