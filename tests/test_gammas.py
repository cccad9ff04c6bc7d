from __future__ import annotations

import pytest

from cudt.errors import UserError
from cudt.gammas import check_gammas, parse_gammas


def test_the_default_grid_has_fifteen_exact_levels():
    gammas = parse_gammas("0:2.1:0.15")
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
def test_a_grid_is_sorted_without_repeats(text, gammas):
    assert parse_gammas(text) == gammas


def test_a_grid_may_have_a_thousand_levels():
    assert len(parse_gammas("1:1000:1")) == 1000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0:1:0", "step must be above 0, not 0"),
        ("0:1:-1", "step must be above 0, not -1"),
        ("0:1:nan", "step must be above 0"),
        ("1:0:0.1", "stop must be a number not below the start"),
        ("0:inf:0.1", "stop must be a number"),
        ("nan:1:0.1", "stop must be a number"),
        ("a,b", "start:stop:step"),
        ("", "start:stop:step"),
        ("0,,1", "start:stop:step"),
        ("0:1", "three parts"),
        ("0:1:0.1:2", "three parts"),
        ("nan", "at least 0, not nan"),
        ("snan", "γ grid"),
        ("inf", "at least 0, not inf"),
        ("1e400", "at least 0, not inf"),
        ("-1", "at least 0, not -1"),
        ("-1:1:0.5", "at least 0, not -1"),
        ("0:1e9:0.1", "at most 1000"),
        ("1:1001.5:1", "at most 1000"),
        ("0:1e999999:1", "at most 1000"),
        ("0:1:1e-999999", "at most 1000"),
        ("0:1e99999999:1e-99999999", "γ grid"),
    ],
)
def test_a_bad_grid_is_told_in_one_line(text, reason):
    with pytest.raises(UserError) as error:
        parse_gammas(text)
    message = str(error.value)
    assert message.startswith(f"γ grid '{text}'")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize("gammas", [[], [0.0, -0.1], [float("nan")], [float("inf")]])
def test_a_list_of_levels_is_checked_too(gammas):
    with pytest.raises(UserError, match="γ grid 'here'"):
        check_gammas(gammas, "here")
