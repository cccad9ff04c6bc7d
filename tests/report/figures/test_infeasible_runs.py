from __future__ import annotations

import math

import pandas as pd
import pytest

from cudt.report.collect import collect
from cudt.report.figures import infeasible_runs
from cudt.report.figures.infeasible_runs import InfeasibleRun
from cudt.runs.tables import TABLES
from tests.report import make_run, make_video_run
from tests.report.figures import groups_of, named_lines, points_of


def verdict(layer: int, word: str, loss: float = 1.0, allowed: float = 0.9) -> dict[str, object]:
    numbers = {
        "loss": loss,
        "allowed": allowed,
        "violation": loss - allowed,
        "standard_error": 0.01,
        "slack": 0.0,
    }
    return {"layer": layer, **numbers, "verdict": word}


def test_the_losses_of_an_infeasible_run_are_shown_against_their_limits(trained_run, tmp_path):
    few = [verdict(1, "met", 0.5, 0.6), verdict(2, "violated"), verdict(3, "met", 0.7, 0.8)]
    many = [
        verdict(1, "violated", 1.3, 1.0),
        verdict(2, "relaxed", 1.2, 1.1),
        verdict(3, "violated", 1.4, 1.0),
    ]
    make_run(trained_run, tmp_path, seed=0, feasible=False, verdicts=few)
    make_run(trained_run, tmp_path, seed=1, feasible=False, verdicts=many)
    make_run(trained_run, tmp_path, seed=2, feasible=True, verdicts=many)
    make_run(trained_run, tmp_path, objective="erm", feasible=False, verdicts=many)
    make_run(trained_run, tmp_path, name="other", feasible=False, verdicts=few)
    worst = infeasible_runs.most_violated(collect([tmp_path]).runs)
    assert [(run.recipe, run.seed) for run in worst] == [("reviews-ut", 1), ("other", 0)]
    figure, _ = infeasible_runs.draw([InfeasibleRun(run, None) for run in worst])
    first, second = figure.axes
    assert points_of(named_lines(first)["constrained"]) == [[1, 1.3], [2, 1.2], [3, 1.4]]
    assert points_of(first.containers[0][0]) == [[1, 1.0], [2, 1.1], [3, 1.0]]
    marks = {
        mark.get_label(): mark.get_offsets().tolist()
        for mark in first.collections
        if mark.get_label()[0] != "_"
    }
    assert marks == {"violated": [[1, 1.3], [3, 1.4]], "relaxed": [[2, 1.2]]}
    assert first.get_title() == "reviews-ut, L = 3, γ_train = 0.4, seed 1\nfails at all 3 layers"
    assert second.get_title() == "other, L = 3, γ_train = 0.4, seed 0\nfails at layer 2 of 3"


def plant_psnr(run, *values: float) -> None:
    rows = [("gaussian", 0.4, layer, "PSNR", value) for layer, value in enumerate(values, 1)]
    run.merge_table(
        "layer_metrics",
        pd.DataFrame(rows, columns=TABLES["layer_metrics"]),
        ["perturbation", "gamma"],
    )


def test_psnr_under_noise_and_by_layer_is_shown_next_to_that_of_erm(trained_run, tmp_path):
    failing = [verdict(layer, "violated", 4e5, 3e5) for layer in (1, 2, 3)]
    plant_psnr(
        make_video_run(
            trained_run, tmp_path, {0.0: 25.5, 1.0: 51.0}, feasible=False, verdicts=failing
        ),
        9,
        8,
        7,
    )
    for seed in (1, 0):
        kept = [verdict(layer, "met", 1e5 + seed, 3e5) for layer in (1, 2, 3)]
        erm = make_video_run(
            trained_run,
            tmp_path,
            {0.0: 2.55, 1.0: 25.5},
            objective="erm",
            seed=seed,
            feasible=False,
            verdicts=kept,
        )
        plant_psnr(erm, 10, 20, 30 + seed)
    groups = groups_of(tmp_path)
    (plan,) = infeasible_runs.FIGURE.over_recipes([groups])
    losses, noise, layers = plan.draw().figure.axes
    assert points_of(named_lines(losses)["erm"]) == [[1, 1e5], [2, 1e5], [3, 1e5]]
    curves = {
        name: [level for _, level in points_of(line)] for name, line in named_lines(noise).items()
    }
    assert curves["constrained"] == pytest.approx([20, 20 * math.log10(5)])
    assert curves["erm"] == pytest.approx([40, 20])
    assert noise.get_ylabel() == layers.get_ylabel() == "test PSNR (dB)"
    by_layer = {name: points_of(line) for name, line in named_lines(layers).items()}
    assert by_layer == {"constrained": [[1, 9], [2, 8], [3, 7]], "erm": [[1, 10], [2, 20], [3, 30]]}
