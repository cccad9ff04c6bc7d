from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest

from cudt.report import interactive, objectives
from cudt.report.collect import collect
from cudt.report.groups import by_recipe, read_groups
from tests.report import INPUT_RMSE, REACH, make_run, make_video_run
from tests.report.figures import in_groups, variant_of
from tests.report.many import add_history, add_levels

CURVE = {0.0: 0.9, 0.4: 0.8, 1.0: 0.6}


def section_of(folder) -> dict[str, Any]:
    (groups,) = by_recipe(read_groups(collect([folder]).runs)).values()
    return interactive.section(groups, {group.key for group in groups})


@pytest.fixture(scope="module")
def shown(trained_run, tmp_path_factory) -> dict[str, Any]:
    """Two variants of a constrained model, one on two seeds, and ERM."""
    out = tmp_path_factory.mktemp("runs")
    for alpha, seed, away in ((0.1, 0, 0.0), (0.1, 1, 0.1), (0.3, 0, 0.0)):
        curve = {gamma: value - away for gamma, value in CURVE.items()}
        run = make_run(
            trained_run,
            out,
            curve,
            seed=seed,
            overrides=[f"descent.alpha={alpha}"],
            feasible=seed == 0,
            steps=(0.6, 0.3, 0.1),
        )
        add_levels(run, [0.0, 1.0])
        add_history(run, updates=200, rate=0.01 * (1 + 2 * (alpha > 0.2)))
    run = make_run(trained_run, out, {0.0: 0.7, 0.4: 0.6}, objective="erm", feasible=False)
    add_history(run, updates=50)
    return section_of(out)


def test_the_section_is_valid_json(shown):
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_groups_are_sorted_by_what_sets_them_apart(shown):
    assert [group["name"] for group in shown["groups"]] == ["constrained α=0.1", "constrained α=0.3", "erm"]
    assert [group["seeds"] for group in shown["groups"]] == ["2 seeds", "1 seed", "1 seed"]
    assert all(group["shown"] for group in shown["groups"])
    assert len({(group["color"], group["dash"], group["symbol"]) for group in shown["groups"]}) == 3


def test_infeasible_runs_are_counted_and_erm_has_none(shown):
    assert [group["infeasible"] for group in shown["groups"]] == [1, 0, 0]


def test_curves_are_the_numbers_of_the_tables(shown):
    first, second, erm = shown["kinds"]["gaussian"]["curves"]
    assert first["x"] == [0.0, 0.4, 1.0]
    assert first["y"] == pytest.approx([0.85, 0.75, 0.55])
    assert first["seeds"] == 2
    # Of two seeds a tenth apart the deviation is 0.1 / √2; of a single one the interval of its examples is shown.
    assert first["low"] == pytest.approx([value - 0.1 / math.sqrt(2) for value in first["y"]], abs=1e-5)
    assert second["low"] == pytest.approx([value - REACH for value in second["y"]])
    assert (erm["x"], erm["y"]) == ([0.0, 0.4], [0.7, 0.6])


def test_the_noisy_input_is_a_curve_of_video_alone(shown, trained_run, tmp_path):
    assert shown["kinds"]["gaussian"]["input"] is None
    make_video_run(trained_run, tmp_path, {0.5: 9.0, 1.0: 12.0})
    assert section_of(tmp_path)["kinds"]["gaussian"]["input"] == {"x": [0.5, 1.0], "y": [INPUT_RMSE / 2, INPUT_RMSE]}


def test_losses_by_layer_are_given_at_every_level_of_a_group(shown):
    kind = shown["kinds"]["gaussian"]
    assert kind["gammas"] == [0.0, 0.4, 1.0]
    assert kind["layers"][0] == [[0.6, 0.5, 0.4], [0.6, 0.5, 0.4], [0.7, 0.6, 0.5]]
    assert kind["layers"][2] == [None, [0.6, 0.5, 0.4], None]
    assert kind["seen"] == 0.4
    assert kind["symbol"] == "γ"


def test_ratios_are_densities_without_the_open_bin(shown):
    kind = shown["kinds"]["gaussian"]
    assert kind["ratios"][0] == [{"gamma": 0.4, "grid": 0, "y": [0.6, 0.3]}]
    assert kind["grids"] == [[0.5, 1.5]]


def test_densities_have_three_digits_and_equal_bins_are_stored_once(trained_run, tmp_path):
    first = make_run(trained_run, tmp_path, CURVE, steps=(0.123456, 0.0, 0.876544))
    second = make_run(trained_run, tmp_path, CURVE, objective="erm")
    table = first.read_table("ratio_bins")
    first.write_table("ratio_bins", pd.concat([table, table.assign(gamma=1.0)]))
    second.write_table("ratio_bins", second.read_table("ratio_bins").replace({"right": {1.0: 1.5}, "left": {1.0: 1.5}}))
    kind = section_of(tmp_path)["kinds"]["gaussian"]
    assert json.dumps(kind["ratios"][0][0]["y"]) == "[0.123, 0]"
    assert [one["grid"] for levels in kind["ratios"] for one in levels] == [0, 0, 1]
    assert kind["grids"] == [[0.5, 1.5], [0.75, 1.75]]


def test_each_group_has_its_own_reference(trained_run, tmp_path):
    for alpha, reference in ((0.1, 0.7), (0.2, 1.4), (0.3, math.inf)):
        make_run(trained_run, tmp_path, CURVE, overrides=[f"descent.alpha={alpha}"], reference=reference)
    assert [group["reference"] for group in section_of(tmp_path)["groups"]] == [0.7, 1.4, None]


def test_training_shows_the_multipliers_of_a_run_of_each_group_thinned(shown):
    first, second, erm = shown["training"]
    assert [run["group"] for run in (first, second, erm)] == [0, 1, 2]
    (line,) = [line for line in first["multipliers"] if line["layer"] == 2]
    assert len(line["x"]) == 60
    assert (line["x"][0], line["x"][-1]) == (0, 199)
    assert line["y"] == pytest.approx([0.02 * step for step in line["x"]], rel=1e-4)
    assert second["multipliers"][1]["y"][-1] == pytest.approx(3 * line["y"][-1], rel=1e-4)
    assert erm["multipliers"] == []
    assert [line["layer"] for line in erm["losses"]] == [1, 2, 3]
    assert erm["losses"][0]["y"] == pytest.approx([1 / (step + 1) for step in range(0, 50, 10)], rel=1e-4)


def test_training_levels_that_differ_are_not_shaded(trained_run, tmp_path):
    for level in (0.4, 0.8):
        make_run(trained_run, tmp_path, CURVE, overrides=[f"noise.gamma_train={level}"], gamma_train=level)
    assert section_of(tmp_path)["kinds"]["gaussian"]["seen"] is None


def test_of_many_variants_the_best_of_each_objective_are_shown_at_first(trained_run, tmp_path):
    losses = {0.02 * number: 1 - 0.05 * number for number in range(1, 11)}
    for alpha, loss in losses.items():
        best = {"epoch": 0, "validation_loss": loss}
        make_run(trained_run, tmp_path, CURVE, overrides=[f"descent.alpha={alpha:g}"], best=best)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    groups = section_of(tmp_path)["groups"]
    assert [group["name"] for group in groups if group["shown"]] == [
        *(f"constrained α={alpha:g}" for alpha in sorted(losses)[-4:]),
        "erm",
    ]


def test_values_that_are_not_finite_are_gaps(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.8}, losses=(math.nan, math.inf, 0.4))
    shown = section_of(tmp_path)
    json.dumps(shown, allow_nan=False)
    assert shown["kinds"]["gaussian"]["layers"] == [[[None, None, 0.4]]]


def test_runs_that_are_not_evaluated_have_only_training(trained_run, tmp_path):
    add_history(make_run(trained_run, tmp_path))
    shown = section_of(tmp_path)
    assert shown["kinds"] == {}
    assert len(shown["training"][0]["multipliers"]) == 3
    assert shown["groups"][0]["name"] == "constrained"


def test_values_have_five_digits(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.123456789})
    assert section_of(tmp_path)["kinds"]["gaussian"]["curves"][0]["y"] == [0.12346]


def test_every_kind_of_noise_is_included(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    other = make_run(trained_run, tmp_path, CURVE, objective="erm")
    table = other.read_table("ood")
    other.write_table("ood", pd.concat([table, table.assign(perturbation="uniform")]))
    shown = section_of(tmp_path)
    assert list(shown["kinds"]) == ["gaussian", "uniform"]
    assert shown["kinds"]["uniform"]["curves"][0] is None
    assert shown["kinds"]["uniform"]["layers"] == [[], []]


def test_an_objective_that_is_not_installed_has_a_colour_and_a_name(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    (run,) = collect([tmp_path]).runs
    groups = in_groups([run, variant_of(run, "other", {}, objective="my_package.tempered")])
    constrained, tempered = interactive.section(groups, {group.key for group in groups})["groups"]
    assert (constrained["isConstrained"], tempered["isConstrained"]) == (True, False)
    assert tempered["name"] == "tempered"
    assert constrained["color"] != tempered["color"]


def test_a_colour_is_six_digits_whatever_matplotlib_calls_it(trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(objectives, "style", lambda name: {"color": "red", "linestyle": "dashed", "marker": "*"})
    make_run(trained_run, tmp_path, CURVE)
    (group,) = section_of(tmp_path)["groups"]
    assert (group["color"], group["dash"], group["symbol"]) == ("#ff0000", "dash", "star")
