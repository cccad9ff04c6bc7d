from __future__ import annotations

import pytest

from cudt.report import effective_weights
from cudt.report.collect import collect
from tests.report import make_run, plant_weights

UPDATES = [(0.0, 0.1, 1.0), (-0.1, 0.2, 1.1), (0.2, -0.3, 1.2), (-0.3, -0.1, 1.3)]


@pytest.fixture
def run(trained_run, tmp_path):
    """A run whose best epoch is the first of two."""
    made = make_run(trained_run, tmp_path, best={"epoch": 1})
    plant_weights(made, UPDATES)
    return made


def test_weights_at_the_end_of_an_epoch_are_those_of_its_multipliers(trained_run, tmp_path):
    multipliers = {"best": [0.2, 0.5, 0.0], "last": [0.0, 0.0, 1.0]}
    made = make_run(trained_run, tmp_path, best={"epoch": 1}, multipliers=multipliers)
    (found,) = collect([made.path]).runs
    # α = 0.1: λ_l − 0.9·λ_{l+1}, and 1 + λ_L.
    assert effective_weights.weights_at_end(found) == pytest.approx({1: -0.25, 2: 0.5, 3: 1.0})
    assert effective_weights.weights_at_end(found, "last") == pytest.approx(
        {1: 0.0, 2: -0.9, 3: 2.0}
    )


def test_shares_of_updates_with_a_negative_weight(run):
    logged = effective_weights.logged_weights(collect([run.path]).runs[0])
    assert effective_weights.negative_shares(logged) == {1: 0.5, 2: 0.5, 3: 0.0}
    assert effective_weights.any_negative(logged) == 0.75


@pytest.mark.parametrize("objective", ["erm", "supervised"])
def test_without_constraints_there_are_no_weights(objective, trained_run, tmp_path):
    made = make_run(trained_run, tmp_path, objective=objective)
    plant_weights(made, UPDATES)
    (found,) = collect([made.path]).runs
    assert effective_weights.weights_at_end(found) == {}
    assert effective_weights.logged_weights(found).empty
