from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from cudt.sweep.search import Arm, Range, Score, Search, combinations, values_of


def spread(**settings) -> Range:
    return Range.model_validate({"low": 0.0, "high": 1.0, **settings})


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"step": 0.25}, [0.0, 0.25, 0.5, 0.75, 1.0]),
        # In binary, three steps of 0.1 are 0.30000000000000004, and ten of 0.15 are 1.5000000000000002.
        ({"step": 0.1}, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        ({"low": 0.05, "high": 0.5, "step": 0.15}, [0.05, 0.2, 0.35, 0.5]),
        ({"low": 1e-4, "high": 5e-4, "step": 2e-4}, [1e-4, 3e-4, 5e-4]),
        ({"low": -0.2, "high": 0.2, "step": 0.2}, [-0.2, 0.0, 0.2]),
        # A step that passes the end stops before it.
        ({"step": 0.4}, [0.0, 0.4, 0.8]),
        ({"low": 2, "high": 5, "type": "int"}, [2, 3, 4, 5]),
        ({"low": 2, "high": 9, "step": 3, "type": "int"}, [2, 5, 8]),
    ],
)
def test_a_range_that_can_be_counted_has_exactly_the_values_that_were_written(settings, values):
    found = spread(**settings).values()
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


COUNTED = [
    {"step": 0.1},
    {"low": 0.05, "high": 0.5, "step": 0.15},
    {"step": 0.4},
    {"low": -0.2, "high": 0.2, "step": 0.2},
    {"low": 2, "high": 5, "type": "int"},
    {"low": 2, "high": 9, "step": 3, "type": "int"},
    {"low": 1, "high": 64, "log": True, "type": "int"},
]


@pytest.mark.parametrize("settings", COUNTED)
def test_a_count_is_that_of_the_values(settings):
    assert spread(**settings).count == len(spread(**settings).values())


def test_very_many_values_are_counted_without_a_list_of_them():
    assert spread(high=4e9, type="int").count == 4_000_000_001
    assert spread(high=1.0, step=1e-12).count == 10**12 + 1


@pytest.mark.parametrize("settings", COUNTED)
def test_what_is_off_by_little_is_snapped_to_the_nearest_of_the_values(settings):
    chosen = spread(**settings)
    for value in chosen.values():
        for off in (-1e-9, 0.0, 1e-9):
            found = chosen.snapped(float(value or 0) + off)
            assert (found, type(found)) == (value, type(value))


def test_steps_in_binary_are_snapped_to_what_was_written():
    chosen = spread(step=0.1)
    assert 3 * 0.1 != 0.3
    assert [chosen.snapped(index * 0.1) for index in range(11)] == chosen.values()
    assert chosen.snapped(0.34) == 0.3
    # A range in steps may end before its end, and nothing is outside it.
    assert spread(step=0.4).snapped(1.0) == 0.8
    assert [chosen.snapped(value) for value in (-5.0, 5.0)] == [0.0, 1.0]
    assert spread(high=4e9, type="int").snapped(3999999999.0) == 3_999_999_999


def test_a_continuous_range_has_every_value():
    assert spread().snapped(0.30000000000000004) == 0.30000000000000004


def test_the_ends_of_a_range_are_of_its_type():
    assert [repr(end) for end in spread(low=1, high=4).ends()] == ["1.0", "4.0"]
    assert [repr(end) for end in spread(low=1, high=4, type="int").ends()] == ["1", "4"]


@pytest.mark.parametrize(
    ("settings", "continuous"),
    [({}, True), ({"low": 0.1, "log": True}, True), ({"step": 0.5}, False), ({"type": "int"}, False)],
)
def test_a_range_is_continuous_where_it_cannot_be_counted(settings, continuous):
    assert spread(**settings).is_continuous is continuous


@pytest.mark.parametrize(
    ("settings", "mistakes"),
    [
        ({"low": 1, "high": 0}, ["empty range: low (1) must be below high (0)"]),
        ({"low": 1, "high": 1}, ["empty range: low (1) must be below high (1)"]),
        ({"log": True}, ["low must be above 0 in a log range, got 0"]),
        ({"low": -1, "log": True}, ["low must be above 0 in a log range, got -1"]),
        (
            {"low": 0.1, "log": True, "step": 0.1},
            ["log and step cannot be combined; remove one of them, or list the values"],
        ),
        ({"step": 0.0}, ["step must be above 0, got 0"]),
        ({"step": -0.5}, ["step must be above 0, got -0.5"]),
        ({"high": 2.5, "type": "int"}, ["type int: high must be an integer"]),
        ({"low": 0.5, "high": 2.5, "step": 0.5, "type": "int"}, ["type int: low and high and step must be an integer"]),
        ({"step": 2.0}, ["step 2 is larger than the range, which leaves 0 as the only value"]),
        (
            {"low": 2, "high": 4, "step": 3, "type": "int"},
            ["step 3 is larger than the range, which leaves 2 as the only value"],
        ),
        # As large as the range, though 0.3 - 0.1 is 0.19999999999999998.
        ({"low": 0.1, "high": 0.3, "step": 0.2}, []),
        (
            {"low": 1, "high": 0, "step": -1},
            ["empty range: low (1) must be below high (0)", "step must be above 0, got -1"],
        ),
        ({"low": 1e-5, "high": 1e-2, "log": True}, []),
        ({"low": 1, "high": 64, "log": True, "type": "int"}, []),
        ({"low": -1, "high": 1}, []),
        ({"low": 1, "high": 3, "step": 2, "type": "int"}, []),
    ],
)
def test_what_no_sampler_can_draw_from_is_reported(settings, mistakes):
    assert spread(**settings).mistakes() == mistakes


def test_values_are_those_of_a_list_or_a_range():
    assert values_of([None, True, "adam"]) == [None, True, "adam"]
    assert values_of(spread(step=0.5)) == [0.0, 0.5, 1.0]


def test_choices_keep_their_types():
    arm = Arm.model_validate({"sampler": "grid", "search": {"x": [True, 1, 1.0, "1", None]}})
    found = values_of(arm.search["x"])
    assert [repr(value) for value in found] == ["True", "1", "1.0", "'1'", "None"]


@pytest.mark.parametrize("choice", [[0.1], {"a": 1}, math.nan, math.inf])
def test_what_is_no_choice_is_one_mistake(choice):
    with pytest.raises(ValidationError, match="expected a string, a number, true, false or null") as error:
        Arm.model_validate({"sampler": "grid", "search": {"x": [1, choice]}})
    assert error.value.error_count() == 1


def test_choices_are_written_as_they_are(recwarn):
    choices = [True, 1, 1.0, "1", None, 10**400]
    arm = Arm.model_validate({"sampler": "grid", "search": {"x": choices}})
    for mode in ("python", "json"):
        assert repr(arm.model_dump(mode=mode)["search"]["x"]) == repr(choices)
    assert not recwarn.list


def test_combinations_are_in_order():
    assert combinations({"a": [1, 2], "b": ["x", None]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": None},
        {"a": 2, "b": "x"},
        {"a": 2, "b": None},
    ]
    assert combinations({}) == [{}]


@pytest.mark.parametrize("gammas", ["0:1:0", [0, -1], "all", []])
def test_the_levels_of_a_score_are_levels(gammas):
    with pytest.raises(ValidationError, match="γ grid"):
        Score.model_validate({"measure": "grid", "direction": "maximize", "gammas": gammas})


def test_a_search_needs_a_score_and_an_arm_alone():
    found = Search.model_validate(
        {"score": {"measure": "loss", "direction": "minimize"}, "arms": {"one": {"sampler": "seeds", "budget": 1}}}
    )
    assert (found.recipe, found.fixed, found.settings, found.unequal_budgets, found.seed) == (None, {}, {}, None, 0)
    with pytest.raises(ValidationError) as error:
        Search.model_validate({})
    assert {mistake["loc"] for mistake in error.value.errors()} == {("score",), ("arms",)}
