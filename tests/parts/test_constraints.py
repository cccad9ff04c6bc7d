"""The constraints of the three forms, and the verdicts on them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cudt.method.constraints import (
    LayerVerdict,
    descent_violations,
    is_feasible,
    is_monotone,
    judge,
    rate_for_target,
)

FORMS = ["linear", "log", "ladder"]


def literal_violations(f: list[float], f_0: float, rates: list[float], form: str) -> list[float]:
    g = []
    for layer, (loss, rate) in enumerate(zip(f, rates, strict=True)):
        before = f_0 if layer == 0 else f[layer - 1]
        if form == "ladder":
            bound = f_0
            for one in rates[: layer + 1]:
                bound *= 1 - one
            g.append(loss - bound)
        elif form == "linear":
            g.append(loss - (1 - rate) * before)
        else:
            g.append(math.log(loss) - math.log(before) - math.log(1 - rate))
    return g


@pytest.mark.parametrize("form", FORMS)
def test_violations_equal_a_literal_loop(form):
    rng = np.random.default_rng(0)
    f, rates = rng.uniform(0.1, 3, 7).tolist(), rng.uniform(0, 0.9, 7).tolist()
    ours = descent_violations(torch.tensor(f, dtype=torch.double), 1.3, rates, form)
    assert ours.tolist() == pytest.approx(literal_violations(f, 1.3, rates, form), abs=1e-12)


def test_the_log_form_does_not_depend_on_the_scale_of_the_loss_and_survives_underflow():
    f = torch.tensor([0.6, 0.5, 0.45])
    small = descent_violations(f, 0.7, [0.1] * 3, "log")
    assert torch.allclose(small, descent_violations(f * 1e6, 0.7e6, [0.1] * 3, "log"), atol=1e-6)
    underflown = descent_violations(torch.tensor([0.5, 0.0, 0.0]), 0.7, [0.1] * 3, "log")
    assert bool(torch.isfinite(underflown).all())


def test_the_rate_for_a_target_ends_at_the_target():
    assert 0.69 * (1 - rate_for_target(0.05, 0.69, 6)) ** 6 == pytest.approx(0.05)
    for target in (0.69, 1.0, 0.0, -1.0):
        with pytest.raises(ValueError, match="between 0 and the reference"):
            rate_for_target(target, 0.69, 6)


def random_examples() -> tuple[torch.Tensor, torch.Tensor]:
    losses = torch.rand(3, 400, generator=torch.Generator().manual_seed(0)).double() + 0.2
    return losses, torch.ones(400).double()


def test_violation_and_its_standard_error_are_those_of_the_paired_differences():
    losses, weights = random_examples()
    verdicts = judge(losses, weights, 0.8, [0.1, 0.2, 0.3], torch.zeros(3))
    differences = losses[1] - 0.8 * losses[0]
    assert verdicts[1].violation == pytest.approx(differences.mean().item())
    assert verdicts[1].standard_error == pytest.approx((differences.std() / 400**0.5).item())
    assert verdicts[1].allowed == pytest.approx(0.8 * losses[0].mean().item())
    assert verdicts[0].allowed == pytest.approx(0.9 * 0.8)
    ladder = judge(losses, weights, 0.8, [0.1, 0.2, 0.3], torch.zeros(3), "ladder")[2]
    assert ladder.allowed == pytest.approx(0.8 * 0.9 * 0.8 * 0.7)
    assert ladder.violation == pytest.approx(losses[2].mean().item() - ladder.allowed)
    assert ladder.standard_error == pytest.approx((losses[2].std() / 400**0.5).item())


def test_weights_count_examples_more_than_once():
    losses, weights = torch.tensor([[0.5, 0.7], [0.3, 0.9]]), torch.tensor([3.0, 1.0])
    weighted = judge(losses, weights, 1.0, [0.1, 0.1], torch.zeros(2))
    repeated = judge(losses[:, [0, 0, 0, 1]], torch.ones(4), 1.0, [0.1, 0.1], torch.zeros(2))
    assert [v.violation for v in weighted] == pytest.approx([v.violation for v in repeated])


@pytest.mark.parametrize(
    ("violation", "slack", "expected"),
    [
        (-0.1, 0.0, "met"),
        (0.0, 0.0, "met"),
        (0.015, 0.0, "borderline"),
        (0.03, 0.02, "relaxed"),
        (0.03, 0.0, "violated"),
    ],
)
def test_the_four_verdicts(violation, slack, expected):
    assert LayerVerdict(1, 0.5, 0.5 - violation, violation, 0.01, slack).verdict == expected


def test_feasible_is_what_the_data_cannot_refute_and_monotone_starts_at_the_reference():
    met, borderline, relaxed = (LayerVerdict(1, 0.5, 0.5, g, 0.01, 1.0) for g in (-0.1, 0.01, 0.5))
    assert is_feasible([met, borderline])
    assert not is_feasible([met, relaxed])
    assert is_monotone(0.7, [0.6, 0.5, 0.4])
    for losses in ([0.6, 0.6, 0.4], [0.8, 0.5, 0.4], [0.6, 0.4, 0.5]):
        assert not is_monotone(0.7, losses)
