from __future__ import annotations

import pytest

from cudt.config import recipe
from tests.conftest import train_quietly


@pytest.mark.slow
def test_in_the_demo_the_constrained_run_descends_at_every_layer_and_erm_does_not(tmp_path):
    constrained, erm = (
        train_quietly(recipe.load("reviews-ut", objective=objective), tmp_path).finished_info()
        for objective in ("constrained", "erm")
    )
    assert constrained.feasible
    assert constrained.monotone
    assert not erm.feasible
    assert not erm.monotone
    for info in (constrained, erm):
        assert info.verdicts[-1].loss < info.reference / 2
