from __future__ import annotations

import pytest

from cudt.report.collect import collect
from cudt.report.figures import choose
from tests.report import make_run
from tests.report.figures import groups_of, in_groups, variant_of

CURVE = {0.0: 1.0, 1.0: 0.8}


def trained_at(gamma: float) -> list[str]:
    return [f"noise.gamma_train={gamma}"]


def test_the_pair_is_at_the_highest_gamma_train_that_both_objectives_have(trained_run, tmp_path):
    for gamma, objective in ((0.2, "constrained"), (0.2, "erm"), (0.6, "constrained"), (0.6, "erm"), (0.9, "erm")):
        make_run(trained_run, tmp_path, CURVE, objective=objective, overrides=trained_at(gamma), gamma_train=gamma)
    chosen = choose.pair(groups_of(tmp_path), "gaussian")
    assert [(group.objective, group.gamma_train) for group in chosen] == [("constrained", 0.6), ("erm", 0.6)]


def test_the_pair_has_most_seeds_and_then_the_lowest_validation_loss(trained_run, tmp_path):
    losses = {0.1: 0.1, 0.2: 0.9, 0.3: 0.5, 0.4: float("nan")}
    for alpha, loss in losses.items():
        for seed in range(1 if alpha == 0.1 else 2):
            best = {"epoch": 1, "validation_loss": loss}
            make_run(trained_run, tmp_path, CURVE, seed=seed, overrides=[f"descent.alpha={alpha}"], best=best)
    (chosen,) = choose.pair(groups_of(tmp_path), "gaussian")
    assert chosen.settings["descent.alpha"] == 0.3


def test_a_pair_has_one_depth(trained_run, tmp_path):
    for layers, objective in ((3, "constrained"), (5, "constrained"), (3, "erm")):
        losses = [0.5] * layers
        overrides = [f"model.layers={layers}"]
        make_run(trained_run, tmp_path, CURVE, objective=objective, losses=losses, overrides=overrides)
    assert [group.n_layers for group in choose.pair(groups_of(tmp_path), "gaussian")] == [3, 3]


def test_runs_without_a_curve_are_not_chosen(trained_run, tmp_path):
    make_run(trained_run, tmp_path)
    groups = groups_of(tmp_path)
    assert choose.pair(groups, "gaussian") == []
    assert choose.main_kind(groups) is None


def test_a_series_differs_in_one_setting_only(trained_run, tmp_path):
    for alpha in (0.3, 0.1, 0.2):
        make_run(trained_run, tmp_path, CURVE, overrides=[f"descent.alpha={alpha}"])
    make_run(trained_run, tmp_path, CURVE, overrides=["descent.alpha=0.4", "training.epochs=7"])
    make_run(trained_run, tmp_path, None, overrides=["descent.alpha=0.5"])
    found = choose.series(groups_of(tmp_path), "descent.alpha", "gaussian")
    assert [group.settings["descent.alpha"] for group in found] == [0.1, 0.2, 0.3]
    assert choose.series(groups_of(tmp_path), "descent.dual.optimizer", "gaussian") == []


@pytest.mark.parametrize(
    ("levels", "shown"),
    [
        ([round(0.15 * i, 2) for i in range(15)], [0, 1.05, 1.65]),
        ([0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 1.5], [0.01, 0.75, 1.0]),
        ([0.5], [0.5]),
        ([0.0, 1.0], [0.0, 1.0]),
    ],
)
def test_a_low_a_middle_and_a_high_level(levels, shown, trained_run, tmp_path):
    make_run(trained_run, tmp_path, dict.fromkeys(levels, 0.5))
    assert choose.middle_levels(groups_of(tmp_path), "gaussian") == shown


def test_levels_are_those_that_all_groups_have(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 1.0, 0.5: 0.8, 1.0: 0.7})
    make_run(trained_run, tmp_path, {0.0: 1.0, 0.5: 0.8, 0.75: 0.2}, objective="erm")
    assert choose.middle_levels(groups_of(tmp_path), "gaussian") == [0.0, 0.5]


def test_two_values_or_two_changed_settings_are_no_ablation(trained_run, tmp_path):
    for index in range(4):
        settings = [f"descent.alpha={0.1 * index}", f"training.epochs={index + 1}"]
        make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=settings)
    make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=["descent.alpha=0.35", "training.epochs=1"])
    assert choose.ablated(groups_of(tmp_path), "gaussian") == {}


def test_depth_and_gamma_train_are_not_ablated(trained_run, tmp_path):
    for index in range(1, 5):
        make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=[f"model.layers={index}"])
        make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=[f"noise.gamma_train={index}"], gamma_train=index)
    assert choose.ablated(groups_of(tmp_path), "gaussian") == {}


def test_an_objective_that_is_not_installed_is_chosen_too(trained_run, tmp_path):
    for objective in ("supervised", "erm", "constrained"):
        make_run(trained_run, tmp_path, CURVE, objective=objective)
    runs = collect([tmp_path]).runs
    runs += [variant_of(runs[0], "other", {}, objective="my_package.tempered")]
    chosen = choose.pair(in_groups(runs), "gaussian")
    assert [group.objective for group in chosen] == ["constrained", "erm", "my_package.tempered", "supervised"]
