from __future__ import annotations

import math
from decimal import Decimal

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


def test_small_losses_keep_their_ratio():
    # As floats both would be 0.
    losses = torch.tensor([[3e-60], [1e-60]], dtype=torch.float64)
    assert ratios.layer_ratios(losses).item() == pytest.approx(1 / 3)


def test_one_layer_has_no_ratio():
    steps = ratios.layer_ratios(torch.ones(1, 5))
    assert steps.shape == (0, 5)
    assert ratios.distribution(lambda: [steps]) is None


def test_the_summary_of_a_few_ratios():
    # Mean 5.75 / 4; the middle of 0.75 and 1; two of four below 1, and 1 itself is not.
    steps = torch.tensor([[0.5, 3.5], [1.0, 0.75]], dtype=torch.float64)
    assert summary(steps) == {"mean": 1.4375, "median": 0.875, "decreasing": 0.5, "n": 4}


def test_an_endless_ratio_moves_the_mean_but_not_the_median():
    made = summary(torch.tensor([[0.5, 0.75, INF]], dtype=torch.float64))
    assert made["mean"] == INF
    assert made["median"] == 0.75
    assert made["decreasing"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_bins_include_their_left_edge(precision):
    edges = torch.tensor(ratios.EDGES, dtype=precision)
    for number, row in enumerate(histogram(edges.unsqueeze(0))):
        left, right, share, cumulative = row
        assert left == ratios.EDGES[number]
        assert share == pytest.approx(1 / 101)
        assert cumulative == pytest.approx((number + 1) / 101)
        assert right == (ratios.EDGES[number + 1] if number < 100 else INF)


def test_bins_are_two_hundredths_wide_up_to_two():
    # As they are written: 0.58, where 29 · 0.02 is 0.5800000000000001.
    assert [float(Decimal(2 * step) / 100) for step in range(101)] == ratios.EDGES


def random_steps() -> torch.Tensor:
    steps = torch.rand(3, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2.5
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
            assert share == pytest.approx(((steps >= left) & (steps < right)).double().mean().item())
    assert rows[-1][2] == pytest.approx((steps >= 2).double().mean().item())
    assert rows[-1][3] == pytest.approx(1)


def test_what_lies_below_one_in_the_histogram_is_what_decreases():
    steps = random_steps()
    below_one = next(cumulative for _, right, _, cumulative in histogram(steps) if right == 1)
    assert below_one == pytest.approx(summary(steps)["decreasing"])


# ---------------------------------------------------------------- in blocks


def awkward_steps(n: int) -> torch.Tensor:
    """Ratios with ties, infinities, both zeros, the smallest number and a negative one."""
    steps = torch.rand(4, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) * 2
    steps[0, ::3], steps[1, ::2], steps[2, 0], steps[3, :2] = 1.0, INF, 5e-324, torch.tensor([-0.5, 0.0])
    return steps


@pytest.mark.parametrize("n", [3, 50, 301, 1000])
def test_ratios_in_blocks_have_the_same_distribution(n, monkeypatch):
    steps = awkward_steps(n)
    whole = ratios.distribution(lambda: [steps])
    monkeypatch.setattr(ratios, "BLOCK", 64)
    parts = ratios.distribution(lambda: steps.split(17, 1))
    assert whole is not None
    assert parts is not None
    assert parts.histogram == whole.histogram
    for layer, row in whole.summaries.items():
        mean = parts.summaries[layer].pop("mean")
        assert mean == pytest.approx(row.pop("mean"))
        # Medians and counts to the last bit.
        assert parts.summaries[layer] == row
        assert row["median"] == float(np.median(steps if layer == 0 else steps[layer - 2]))


def test_the_layers_of_a_distribution_are_all_and_then_the_second_to_the_last():
    found = ratios.distribution(lambda: [awkward_steps(10)])
    assert found is not None
    assert list(found.summaries) == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("numbers", [[1.0], [3.0, -2.0], [0.5] * 7, [-1.5, -1.25, -INF, 4.0, 1e300], [INF, INF, 1.0]])
def test_the_median_by_bits_is_that_of_numpy(numbers, monkeypatch):
    monkeypatch.setattr(ratios, "BLOCK", 0)
    blocks = [np.array([number]) for number in numbers]
    assert ratios.median(lambda: blocks, len(numbers)) == float(np.median(numbers))


def test_the_median_with_something_that_is_no_number_is_none(monkeypatch):
    monkeypatch.setattr(ratios, "BLOCK", 0)
    assert math.isnan(ratios.median(lambda: [np.array([1.0, math.nan, 2.0])], 3))
