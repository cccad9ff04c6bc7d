"""The objectives: what they weigh in an update, and which epoch they call the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives import Objective, make_objective

F = torch.tensor([0.9, 0.7, 0.8])
NAMES = ["erm", "supervised", "constrained"]


def objective(name, form="linear", multipliers=(0.5, 1.0, 2.0)) -> Objective:
    descent = LayerwiseDescent(3, 0.1, 1.0, form=form)
    descent.multiplier_values.copy_(torch.tensor(multipliers))
    return make_objective(name, descent)


@pytest.mark.parametrize(
    ("name", "linear", "log"),
    [
        ("erm", [0, 0, 1], [0, 0, 1]),
        ("supervised", [1 / 3] * 3, [1 / 3] * 3),
        # ∂/∂f_l (f_3 + Σ λ_l (f_l − 0.9 f_{l−1})) = λ_l − 0.9 λ_{l+1}, and 1 more for the last; per
        # unit of log f without 0.9.
        ("constrained", [0.5 - 0.9, 1.0 - 1.8, 1 + 2.0], [0.5 - 1.0, 1.0 - 2.0, 1 + 2.0]),
    ],
)
def test_weight_of_each_layer_in_the_primal_step(name, linear, log):
    assert objective(name).gradient(F).tolist() == pytest.approx(linear, abs=1e-6)
    of_logs = objective(name, "log").gradient(F) * F
    assert of_logs.tolist() == pytest.approx(log, abs=1e-6)


def epoch(*f: float, spread: float = 0.0) -> torch.Tensor:
    """Layer losses of 100 examples, half of them above and half below the mean, layers in opposite directions."""
    signs = torch.tensor([1.0, -1.0], dtype=torch.double).repeat(50)
    return torch.stack([loss + spread * (-1) ** layer * signs for layer, loss in enumerate(f)])


def ranked(name: str, *epochs: torch.Tensor, multiplier: float = 0.0, **settings: Any) -> Any:
    """The ranks of epochs of a model of two layers with α = 0.5 and f_0 = 1."""
    descent = LayerwiseDescent(2, 0.5, 1.0, **settings)
    descent.multiplier_values.fill_(multiplier)
    weights = torch.ones(100).double()
    return [make_objective(name, descent).rank(losses, weights) for losses in epochs]


def test_without_resilience_met_and_borderline_epochs_are_alike_and_the_lower_loss_wins():
    # g = (-0.1, -0.02) is met. g = (-0.1, 0.01) is within two standard errors, 0.04, of 0, and its
    # f_2 is lower still.
    met, borderline = epoch(0.4, 0.18), epoch(0.3, 0.16, spread=0.15)
    first, second = ranked("constrained", met, borderline)
    assert second < first
    assert first == pytest.approx([0, 0, 0.18])
    assert second == pytest.approx([0, 0, 0.16])


def test_without_resilience_infeasible_epochs_come_last_by_their_total_violation_then_by_the_loss():
    # Σ [g]₊ = 0, 0.05, 0.15, 0.1 + 0.1
    epochs = [epoch(0.5, 0.25), epoch(0.5, 0.3), epoch(0.65, 0.325), epoch(0.6, 0.4)]
    ranks = ranked("constrained", *epochs)
    assert ranks == sorted(ranks)
    expected = [pytest.approx([float(x > 0), x]) for x in (0, 0.05, 0.15, 0.2)]
    assert [rank[:2] for rank in ranks] == expected
    same, lower = ranked("constrained", epoch(0.55, 0.275), epoch(0.5, 0.3))
    assert same[:2] == pytest.approx(lower[:2])
    assert same[2] < lower[2]


@pytest.mark.parametrize("resilience", ["slack", "decay"])
def test_with_resilience_an_epoch_is_worth_its_loss_and_the_price_of_its_violations(resilience):
    # f_2 + 3/2·(0.1² + 0.05²)
    ((value,),) = ranked("constrained", epoch(0.6, 0.35), resilience=resilience, beta=3.0)
    assert value == pytest.approx(0.35 + 1.5 * (0.1**2 + 0.05**2))


def test_a_large_multiplier_does_not_buy_a_large_violation():
    # With λ = 9 and β = 10 the slack λ/β = 0.9 "relaxes" any violation.
    bought, slight = epoch(0.9, 0.6), epoch(0.51, 0.26)
    decay: dict[str, Any] = {"resilience": "decay", "beta": 10.0}
    for settings in ({}, decay):
        better, worse = ranked("constrained", slight, bought, multiplier=9.0, **settings)
        assert better < worse


def test_in_the_log_form_the_value_is_in_logarithms():
    ((value,),) = ranked("constrained", epoch(0.6, 0.2), form="log", resilience="decay", beta=3.0)
    assert value == pytest.approx(np.log(0.2) + 1.5 * np.log(0.6 / 0.5) ** 2)
    ((infeasible, excess, last),) = ranked("constrained", epoch(0.6, 0.2), form="log")
    assert (infeasible, excess, last) == pytest.approx((1, np.log(1.2), np.log(0.2)))


def test_erm_and_supervised_choose_by_their_own_objective():
    low_mean, low_last = epoch(0.3, 0.3), epoch(0.8, 0.2)
    supervised, erm = (ranked(name, low_mean, low_last) for name in ("supervised", "erm"))
    assert supervised == [pytest.approx([0.3]), pytest.approx([0.5])]
    assert erm == [pytest.approx([0.3]), pytest.approx([0.2])]
    (in_logs,) = ranked("supervised", low_last, form="log")
    assert in_logs == pytest.approx([(np.log(0.8) + np.log(0.2)) / 2])
