from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cudt.report import interactive
from cudt.report.collect import collect
from cudt.report.groups import by_recipe, read_groups
from tests.report import INPUT_RMSE, REACH, make_run, make_video_run
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


def test_curves_are_the_numbers_of_the_tables(shown):
    first, second, erm = shown["kinds"]["gaussian"]["curves"]
    assert first["x"] == [0.0, 0.4, 1.0]
    assert first["y"] == pytest.approx([0.85, 0.75, 0.55])
    assert first["seeds"] == 2
    # Of two seeds a tenth apart the deviation is 0.1 / √2; of a single one the interval of its
    # examples is shown.
    assert first["low"] == pytest.approx(
        [value - 0.1 / math.sqrt(2) for value in first["y"]], abs=1e-5
    )
    assert second["low"] == pytest.approx([value - REACH for value in second["y"]])
    assert (erm["x"], erm["y"]) == ([0.0, 0.4], [0.7, 0.6])


def test_the_noisy_input_is_a_curve_of_video_alone(shown, trained_run, tmp_path):
    assert shown["kinds"]["gaussian"]["input"] is None
    make_video_run(trained_run, tmp_path, {0.5: 9.0, 1.0: 12.0})
    assert section_of(tmp_path)["kinds"]["gaussian"]["input"] == {
        "x": [0.5, 1.0],
        "y": [INPUT_RMSE / 2, INPUT_RMSE],
    }


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
    assert erm["losses"][0]["y"] == pytest.approx(
        [1 / (step + 1) for step in range(0, 50, 10)], rel=1e-4
    )
