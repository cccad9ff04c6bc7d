from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cudt.evaluation import ratios

INF = math.inf


def summary(steps: torch.Tensor) -> dict[str, float]:
    """That of all layers together."""
    found = ratios.distribution(lambda: [steps])
    assert found is not None
    return found.summaries[0]


def histogram(steps: torch.Tensor) -> list[tuple[float, float, float, float]]:
    found = ratios.distribution(lambda: [steps])
    assert found is not None
    return found.histogram


def test_ratios_are_each_layers_loss_over_the_one_before_it():
    losses = torch.tensor([[2.0, 1.0, 0.5], [1.0, 1.0, 2.0], [0.5, 3.0, 0.5]])
    assert ratios.layer_ratios(losses).tolist() == [[0.5, 1, 4], [0.5, 3, 0.25]]


def test_from_nothing_to_nothing_is_no_change_and_to_something_is_endless():
    losses = torch.tensor([[0.0, 0.0, 2.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    made = ratios.layer_ratios(losses)
    assert made.tolist() == [[1, INF, 0]]
    assert made.dtype == torch.float64


def test_the_summary_of_a_few_ratios():
    # Mean 5.75 / 4; the middle of 0.75 and 1; two of four below 1, and 1 itself is not.
    steps = torch.tensor([[0.5, 3.5], [1.0, 0.75]], dtype=torch.float64)
    assert summary(steps) == {"mean": 1.4375, "median": 0.875, "decreasing": 0.5, "n": 4}


def random_steps() -> torch.Tensor:
    steps = (
        torch.rand(3, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2.5
    )
    steps[0, :20] = INF
    steps[1, :30] = 1.0
    steps[2, :40] = 0.0
    return steps


def test_shares_add_up_to_one_and_cumulative_is_the_share_of_steps_below_the_right_edge():
    steps = random_steps()
    rows = histogram(steps)
    assert sum(share for _, _, share, _ in rows) == pytest.approx(1)
    for left, right, share, cumulative in rows:
        if right < INF:
            assert cumulative == pytest.approx((steps < right).double().mean().item())
            assert share == pytest.approx(
                ((steps >= left) & (steps < right)).double().mean().item()
            )
    assert rows[-1][2] == pytest.approx((steps >= 2).double().mean().item())
    assert rows[-1][3] == pytest.approx(1)


# ---------------------------------------------------------------- in blocks


@pytest.mark.parametrize(
    "numbers", [[1.0], [3.0, -2.0], [0.5] * 7, [-1.5, -1.25, -INF, 4.0, 1e300], [INF, INF, 1.0]]
)
def test_the_median_by_bits_is_that_of_numpy(numbers, monkeypatch):
    monkeypatch.setattr(ratios, "BLOCK", 0)
    blocks = [np.array([number]) for number in numbers]
    assert ratios.median(lambda: blocks, len(numbers)) == float(np.median(numbers))
