from __future__ import annotations

import pytest

from cudt.noise.base import distribution, scale_of, training_level


@pytest.mark.parametrize(
    ("kind", "symbol", "seen"),
    [("gaussian", "γ", 0.4), ("uniform", "γ", 0.4), ("discrete", "p", 0.0)],
)
def test_texts_are_damaged_with_a_probability_that_no_training_has_seen(kind, symbol, seen):
    assert scale_of(kind).symbol == symbol
    assert training_level(kind, gamma_train=0.4) == seen


def test_levels_up_to_that_of_training_are_in_distribution():
    assert [distribution("uniform", level, 0.4) for level in (0.0, 0.4, 0.41)] == [
        "ID",
        "ID",
        "OOD",
    ]
    assert [distribution("discrete", level, 0.4) for level in (0.0, 0.1)] == ["ID", "OOD"]
