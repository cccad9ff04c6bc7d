from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from cudt.report.collect import collect
from cudt.report.figures import layers
from cudt.runs.run import TABLES
from tests.report import make_run, make_video_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def test_errors_over_layers_clean_at_training_and_at_the_highest_level(trained_run, tmp_path, drawn):
    for seed in range(2):
        run = make_run(trained_run, tmp_path, {0.0: 1.0, 2.0: 0.8}, seed=seed)
        rows = [
            ("test", "gaussian", gamma, layer, 0.5, 0.9 - 0.1 * gamma - 0.2 * seed / layer)
            for gamma in (0.0, 0.4, 1.0, 2.0)
            for layer in (1, 2, 3)
        ]
        run.merge_table("layers", pd.DataFrame(rows, columns=TABLES["layers"]), TABLES["layers"][:4])
    made = layers.errors_over_layers(groups_of(tmp_path), "gaussian", tmp_path / "stem")
    titles = ["γ = 0", "γ = 0.4 (γ_train)", "γ = 2"]
    assert [axes.get_title() for axes in drawn[0].axes] == titles
    for axes, gamma in zip(drawn[0].axes, (0.0, 0.4, 2.0), strict=True):
        wanted = [[layer, 0.1 + 0.1 * gamma + 0.1 / layer] for layer in (1, 2, 3)]
        assert np.allclose(points_of(axes.lines[0]), wanted)
        band = axes.collections[0].get_datalim(axes.transData)
        assert band.ymax == pytest.approx(wanted[0][1] + 0.1 * 2**0.5)
    assert made.title == "reviews-ut: 1 − accuracy over layers under gaussian noise, 2 seeds"


def test_an_error_is_drawn_as_it_is(trained_run, tmp_path, drawn):
    make_video_run(trained_run, tmp_path, {0.0: 10.0})
    layers.errors_over_layers(groups_of(tmp_path), "gaussian", tmp_path / "stem")
    (axes,) = drawn[0].axes
    assert axes.lines[0].get_ydata().tolist() == [0.5] * 3
    assert axes.get_ylabel() == "test RMSE"


def verdict(layer: int, word: str, loss: float = 1.0, allowed: float = 0.9) -> dict[str, object]:
    numbers = {"loss": loss, "allowed": allowed, "violation": loss - allowed, "standard_error": 0.01, "slack": 0.0}
    return {"layer": layer, **numbers, "verdict": word}


def test_an_infeasible_run_is_shown_against_what_was_allowed(trained_run, tmp_path, drawn):
    few = [verdict(1, "met", 0.5, 0.6), verdict(2, "violated"), verdict(3, "met", 0.7, 0.8)]
    many = [verdict(1, "violated", 1.3, 1.0), verdict(2, "relaxed", 1.2, 1.1), verdict(3, "violated", 1.4, 1.0)]
    make_run(trained_run, tmp_path, seed=0, feasible=False, verdicts=few)
    make_run(trained_run, tmp_path, seed=1, feasible=False, verdicts=many)
    make_run(trained_run, tmp_path, seed=2, feasible=True, verdicts=many)
    make_run(trained_run, tmp_path, objective="erm", feasible=False, verdicts=many)
    make_run(trained_run, tmp_path, name="other", feasible=False, verdicts=few)
    worst = layers.most_violated(collect([tmp_path]).runs)
    assert [(run.recipe, run.seed) for run in worst] == [("reviews-ut", 1), ("other", 0)]
    made = layers.infeasible_runs(worst, tmp_path / "stem")
    first, second = drawn[0].axes
    assert points_of(named_lines(first)["validation loss"]) == [[1, 1.3], [2, 1.2], [3, 1.4]]
    assert points_of(first.containers[0][0]) == [[1, 1.0], [2, 1.1], [3, 1.0]]
    marks = {mark.get_label(): mark.get_offsets().tolist() for mark in first.collections if mark.get_label()[0] != "_"}
    assert marks == {"violated": [[1, 1.3], [3, 1.4]], "relaxed": [[2, 1.2]]}
    assert first.get_title() == "reviews-ut, seed 1\nnot kept at any of 3 layers"
    assert second.get_title() == "other, seed 0\nnot kept at layer 2 of 3"
    assert made.recipe == ""


def test_at_most_six_infeasible_runs_are_shown(trained_run, tmp_path):
    for place in range(8):
        verdicts = [verdict(layer, "violated") for layer in range(1, place + 2)]
        make_run(trained_run, tmp_path, name=f"recipe-{place}", feasible=False, verdicts=verdicts)
    worst = layers.most_violated(collect([tmp_path]).runs)
    assert [run.recipe for run in worst] == [f"recipe-{place}" for place in range(7, 1, -1)]


def test_the_average_descent_is_a_geometric_mean_of_shares_of_the_reference(trained_run, tmp_path, drawn):
    make_run(trained_run, tmp_path, {0.0: 1.0}, losses=(0.5, 0.25), reference=1.0, seed=0)
    make_run(trained_run, tmp_path, {0.0: 1.0}, losses=(2.0, 1.0, 0.5, 0.25), reference=4.0, seed=1)
    make_run(trained_run, tmp_path, {0.0: 1.0}, losses=(0.5, -1.0), reference=1.0, objective="erm")
    make_run(trained_run, tmp_path, {0.0: 1.0}, losses=(0.5, math.inf), reference=1.0, objective="erm", seed=1)
    make_run(trained_run, tmp_path, {0.0: 1.0}, losses=(3.0,), reference=1.0, objective="erm", seed=2)
    made = layers.average_trajectory(layers.trajectories(groups_of(tmp_path)), 5, tmp_path / "stem")
    (axes,) = drawn[0].axes
    constrained, erm = (np.array(points_of(named_lines(axes)[name])) for name in ("constrained", "erm"))
    # Halved twice, and four times: on average three halvings over all layers.
    assert np.allclose(constrained[[0, 12, 24]], [[0, 1], [0.5, 2**-1.5], [1, 2**-3]])
    assert np.allclose(erm[[0, 24]], [[0, 1], [1, 3]])
    band = axes.collections[0].get_datalim(axes.transData)
    assert band.ymin == pytest.approx(2.0 ** (-3 - 2**0.5))
    assert made.title.startswith("Average descent over 3 runs")
    assert made.title.endswith("without 2 that have no positive test losses")
    assert legend_of(drawn[0]) == ["constrained", "erm"]
