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


# ---------------------------------------------------------------- probabilities


def test_a_list_of_probabilities_is_checked_sorted_and_without_duplicates():
    assert check_levels([0.3, 0.0, 0.3, 1.0], "here", PROBABILITY) == [0, 0.3, 1]
    with pytest.raises(UserError, match=r"^p grid 'here': .* ≤ 1, got 1\.5$"):
        check_levels([0.0, 1.5], "here", PROBABILITY)
    assert check_levels([0.0, 1.5], "here", GAMMA) == [0, 1.5]
