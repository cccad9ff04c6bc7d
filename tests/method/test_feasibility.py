from __future__ import annotations

import pytest
import torch

from cudt.method.feasibility import LayerVerdict, is_feasible, is_monotone, judge
from cudt.method.measurement import Measurement


def measurement(losses: torch.Tensor, weights: torch.Tensor | None = None) -> Measurement:
    ids = [str(number) for number in range(losses.shape[1])]
    weights = torch.ones(losses.shape[1]).double() if weights is None else weights
    return Measurement(losses.double(), losses.double(), weights, ids)


def test_violation_and_its_standard_error_equal_those_of_the_paired_differences():
    losses = torch.rand(3, 400, generator=torch.Generator().manual_seed(0)).double() + 0.2
    verdicts = judge(measurement(losses), 0.8, [0.1, 0.2, 0.3], torch.zeros(3))
    differences = losses[1] - 0.8 * losses[0]
    assert verdicts[1].violation == pytest.approx(differences.mean().item())
    assert verdicts[1].standard_error == pytest.approx((differences.std() / 400**0.5).item())
    assert verdicts[1].allowed == pytest.approx(0.8 * losses[0].mean().item())
    assert verdicts[0].allowed == pytest.approx(0.9 * 0.8)


def test_on_the_ladder_the_bounds_are_fixed_numbers():
    losses = torch.rand(3, 400, generator=torch.Generator().manual_seed(0)).double() + 0.2
    verdicts = judge(measurement(losses), 0.8, [0.1, 0.2, 0.3], torch.zeros(3), "ladder")
    assert [one.allowed for one in verdicts] == pytest.approx(
        [0.8 * 0.9, 0.8 * 0.9 * 0.8, 0.8 * 0.9 * 0.8 * 0.7]
    )
    assert verdicts[2].violation == pytest.approx(losses[2].mean().item() - 0.8 * 0.9 * 0.8 * 0.7)
    assert verdicts[2].standard_error == pytest.approx((losses[2].std() / 400**0.5).item())


def test_weights_count_examples_more_than_once():
    losses = torch.tensor([[0.5, 0.7], [0.3, 0.9]])
    weighted = judge(
        measurement(losses, torch.tensor([3.0, 1.0]).double()), 1.0, [0.1, 0.1], torch.zeros(2)
    )
    repeated = judge(measurement(losses[:, [0, 0, 0, 1]]), 1.0, [0.1, 0.1], torch.zeros(2))
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


def test_feasible_is_what_the_data_cannot_refute():
    met, borderline, relaxed = (LayerVerdict(1, 0.5, 0.5, g, 0.01, 1.0) for g in (-0.1, 0.01, 0.5))
    assert is_feasible([met, borderline])
    assert not is_feasible([met, relaxed])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.6, 0.5, 0.4], True),
        ([0.6, 0.6, 0.4], False),
        ([0.8, 0.5, 0.4], False),
        ([0.6, 0.4, 0.5], False),
    ],
)
def test_monotone_starts_at_the_reference(losses, expected):
    assert is_monotone(0.7, losses) is expected
