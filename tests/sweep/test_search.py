from __future__ import annotations

import pytest

from cudt.sweep.search import Range, combinations


def spread(**settings) -> Range:
    return Range.model_validate({"low": 0.0, "high": 1.0, **settings})


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"step": 0.25}, [0.0, 0.25, 0.5, 0.75, 1.0]),
        # In binary, three steps of 0.1 are 0.30000000000000004, and ten of 0.15 are
        # 1.5000000000000002.
        ({"low": 0.05, "high": 0.5, "step": 0.15}, [0.05, 0.2, 0.35, 0.5]),
        ({"low": 1e-4, "high": 5e-4, "step": 2e-4}, [1e-4, 3e-4, 5e-4]),
        # A step that passes the end stops before it.
        ({"step": 0.4}, [0.0, 0.4, 0.8]),
        ({"low": 2, "high": 9, "step": 3, "type": "int"}, [2, 5, 8]),
    ],
)
def test_a_range_that_can_be_counted_has_exactly_the_values_that_were_written(settings, values):
    found = spread(**settings).values()
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_steps_in_binary_are_snapped_to_what_was_written():
    chosen = spread(step=0.1)
    assert 3 * 0.1 != 0.3
    assert [chosen.snapped(index * 0.1) for index in range(11)] == chosen.values()
    assert chosen.snapped(0.34) == 0.3
    # A range in steps may end before its end, and nothing is outside it.
    assert spread(step=0.4).snapped(1.0) == 0.8
    assert [chosen.snapped(value) for value in (-5.0, 5.0)] == [0.0, 1.0]
    assert spread(high=4e9, type="int").snapped(3999999999.0) == 3_999_999_999


@pytest.mark.parametrize(
    ("settings", "mistakes"),
    [
        ({"low": 1, "high": 0}, ["empty range: low (1) must be below high (0)"]),
        ({"log": True}, ["low must be above 0 in a log range, got 0"]),
        ({"step": 0.0}, ["step must be above 0, got 0"]),
        (
            {"low": 2, "high": 4, "step": 3, "type": "int"},
            ["step 3 is larger than the range, which leaves 2 as the only value"],
        ),
        # As large as the range, though 0.3 - 0.1 is 0.19999999999999998.
        ({"low": 1, "high": 64, "log": True, "type": "int"}, []),
        ({"low": 1, "high": 3, "step": 2, "type": "int"}, []),
    ],
)
def test_what_no_sampler_can_draw_from_is_reported(settings, mistakes):
    assert spread(**settings).mistakes() == mistakes


def test_combinations_are_in_order():
    assert combinations({"a": [1, 2], "b": ["x", None]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": None},
        {"a": 2, "b": "x"},
        {"a": 2, "b": None},
    ]
    assert combinations({}) == [{}]
