from __future__ import annotations

import pytest

from cudt.config.levels import GAMMA, PROBABILITY, check_levels, parse_levels
from cudt.utils.errors import UserError


def test_the_default_grid_has_fifteen_exact_levels():
    gammas = parse_levels("0:2.1:0.15")
    assert len(gammas) == 15
    assert gammas[0] == 0
    assert gammas[11] == 1.65
    assert gammas[-1] == 2.1


@pytest.mark.parametrize(
    ("text", "gammas"),
    [
        ("1,0.5,0,0.5", [0, 0.5, 1]),
        (" 0 , 1 ", [0, 1]),
        ("0.3", [0.3]),
        ("0:1:0.4", [0, 0.4, 0.8]),
        ("1:1:0.1", [1]),
        ("0:3e-1:1e-1", [0, 0.1, 0.2, 0.3]),
    ],
)
def test_a_grid_is_sorted_without_duplicates(text, gammas):
    assert parse_levels(text) == gammas


def test_a_grid_may_have_a_thousand_levels():
    assert len(parse_levels("1:1000:1")) == 1000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0:1:0", "step must be above 0, got 0"),
        ("1:0:0.1", "stop must be a number and not below the start"),
        ("a,b", "start:stop:step"),
        ("0:1", "three parts"),
        ("nan", "≥ 0, got nan"),
        ("-1", "≥ 0, got -1"),
        ("0:1e9:0.1", "at most 1000"),
    ],
)
def test_a_bad_grid_is_reported_in_one_line(text, reason):
    with pytest.raises(UserError) as error:
        parse_levels(text)
    message = str(error.value)
    assert message.startswith(f"γ grid '{text}'")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize("gammas", [[], [0.0, -0.1], [float("nan")], [float("inf")]])
def test_a_list_of_levels_is_checked_too(gammas):
    with pytest.raises(UserError, match="γ grid 'here'"):
        check_levels(gammas, "here")


# ---------------------------------------------------------------- probabilities


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("0:0.3:0.1", [0, 0.1, 0.2, 0.3]),
        ("0:1:0.5", [0, 0.5, 1]),
        ("1,0", [0, 1]),
        ("0.05", [0.05]),
        # The step does not reach the end, so nothing is above 1.
        ("0:1.5:0.8", [0, 0.8]),
    ],
)
def test_a_grid_of_probabilities_goes_from_0_to_1(text, levels):
    assert parse_levels(text, PROBABILITY) == levels


def test_a_list_of_probabilities_is_checked_sorted_and_without_duplicates():
    assert check_levels([0.3, 0.0, 0.3, 1.0], "here", PROBABILITY) == [0, 0.3, 1]
    with pytest.raises(UserError, match=r"^p grid 'here': .* ≤ 1, got 1\.5$"):
        check_levels([0.0, 1.5], "here", PROBABILITY)
    assert check_levels([0.0, 1.5], "here", GAMMA) == [0, 1.5]
