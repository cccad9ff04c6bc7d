from __future__ import annotations

import pytest
import torch

from cudt.models.assemble import assemble
from cudt.sweep import cost
from tests.conftest import tiny_recipe


@pytest.fixture
def clock(monkeypatch):
    """An update takes 1000 seconds and judging a batch takes 1; what was timed is noted."""
    timed: list[object] = []

    def seconds(act) -> float:
        act()
        timed.append(act)
        return 1000.0 if len(timed) % 2 else 1.0

    monkeypatch.setattr(cost, "_seconds", seconds)
    return timed


def estimate(*overrides: str, gammas: list[float] | None = None, objective: str = "constrained") -> float:
    return cost.estimate(tiny_recipe(*overrides, objective=objective), gammas, "cpu", None)


# 96 training examples in updates of 32; 40 validation examples in one batch.
@pytest.mark.parametrize(
    ("overrides", "gammas", "updates", "judgements"),
    [
        ([], None, 2 * 3, 2 + 1),
        (["training.epochs=4"], None, 4 * 3, 4 + 1),
        (["training.batch_size=16"], None, 2 * 6, 2 + 1),
        # What is left over is not trained on.
        (["training.batch_size=40"], None, 2 * 2, 2 + 1),
        (["training.batch_size=1000"], None, 2 * 1, 2 + 1),
        (["task.train=192"], None, 2 * 6, 2 + 1),
        # An update is timed in parts, and has as many of them.
        (["training.accumulation=4"], None, 2 * 3 * 4, 2 + 1),
        (["evaluation.batch_size=16"], None, 2 * 3, 3 * (2 + 1)),
        ([], [0.0, 0.5, 1.0], 2 * 3, 2 + 1 + 3),
    ],
)
def test_what_is_timed_once_is_counted_as_often_as_training_does_it(overrides, gammas, updates, judgements, clock):
    assert estimate(*overrides, gammas=gammas) == 1000 * updates + judgements
    assert len(clock) == 2


@pytest.mark.parametrize("objective", ["erm", "supervised", "constrained"])
def test_every_objective_can_be_timed(objective):
    assert 0 < estimate(objective=objective) < 60


def test_a_much_larger_model_costs_more():
    assert estimate("model.layers=24", "model.width=128") > estimate("model.layers=1")


def test_timing_changes_no_weight(monkeypatch):
    made = []

    def watched(*arguments):
        problem = assemble(*arguments)
        made.append((problem, [weight.clone() for weight in problem.layerwise.parameters()]))
        return problem

    monkeypatch.setattr("cudt.sweep.cost.assemble", watched)
    estimate()
    ((problem, before),) = made
    assert all(map(torch.equal, problem.layerwise.parameters(), before))


def test_the_first_of_what_is_timed_does_not_count(monkeypatch):
    moments = iter([0.0, 1.0, 1.0, 1.3, 1.3, 1.5, 1.5, 1.9])
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    assert cost._seconds(lambda: None) == pytest.approx(0.3)


@pytest.mark.parametrize(("moments", "seconds"), [([0, 21], 21), ([0, 4, 4, 4.2], 0.2), ([0, 2, 2, 3.5], 1.5)])
def test_what_takes_long_is_timed_less_often(monkeypatch, moments, seconds):
    left = list(moments)
    monkeypatch.setattr("time.perf_counter", lambda: left.pop(0))
    assert cost._seconds(lambda: None) == pytest.approx(seconds)
    assert not left


@pytest.mark.parametrize(
    "override", ["descent.alpha=0.3", "descent.dual.learning_rate=1", "training.learning_rate=1", "noise.gamma_train=2"]
)
def test_numbers_that_are_merely_computed_with_cost_the_same(override):
    assert cost.cost_key(tiny_recipe(override)) == cost.cost_key(tiny_recipe())
    assert cost.cost_key(tiny_recipe(seed=3)) == cost.cost_key(tiny_recipe())


@pytest.mark.parametrize("override", ["model.layers=4", "training.epochs=3", "training.batch_size=16", "task.train=90"])
def test_what_shapes_the_work_costs_otherwise(override):
    assert cost.cost_key(tiny_recipe(override)) != cost.cost_key(tiny_recipe())
    assert cost.cost_key(tiny_recipe(objective="erm")) != cost.cost_key(tiny_recipe())
