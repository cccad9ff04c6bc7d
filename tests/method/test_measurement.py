from __future__ import annotations

import pytest
import torch

from cudt.method.constraints import judge
from cudt.method.measurement import Measurement

IDS = ["b", "a", "c", "d"]


def drawn(seed: int, ids: list[str]) -> Measurement:
    """Losses of the same examples under one noise seed, in another order; longer examples weigh
    more."""
    generator = torch.Generator().manual_seed(seed)
    rows = {one: torch.rand(2, 3, generator=generator).double() for one in IDS}
    losses, scores = (torch.stack([rows[one][row] for one in ids], 1) for row in (0, 1))
    weights = torch.tensor([1.0 + seed + IDS.index(one) for one in ids]).double()
    return Measurement(losses, scores, weights, ids)


def test_grouping_noise_seeds_by_example_keeps_the_means():
    joined = Measurement.joined([drawn(0, IDS), drawn(1, IDS[::-1])])
    grouped = joined.grouped(joined.ids)
    assert grouped.ids == ["a", "b", "c", "d"]
    assert grouped.layer_losses.tolist() == pytest.approx(joined.layer_losses.tolist())
    assert grouped.layer_scores.tolist() == pytest.approx(joined.layer_scores.tolist())


def test_a_group_has_the_weighted_mean_of_its_members():
    first, second = drawn(0, IDS), drawn(1, IDS[::-1])
    weights = first.weights[0], second.weights[3]
    wanted = (first.losses[:, 0] * weights[0] + second.losses[:, 3] * weights[1]) / sum(weights)
    joined = Measurement.joined([first, second])
    assert joined.grouped(joined.ids).losses[:, 1].tolist() == pytest.approx(wanted.tolist())


def test_the_same_draw_twice_is_not_twice_the_evidence():
    once = drawn(0, IDS)
    twice = Measurement.joined([once, once])
    alone, grouped, joined = (
        judge(one.losses, one.weights, 1.0, [0.1] * 3, torch.zeros(3))
        for one in (once, twice.grouped(twice.ids), twice)
    )
    assert [one.standard_error for one in grouped] == pytest.approx(
        [one.standard_error for one in alone]
    )
    assert joined[0].standard_error < 0.8 * alone[0].standard_error


def test_the_standard_error_over_groups_of_equal_size_is_that_of_their_means():
    losses = torch.rand(1, 12, generator=torch.Generator().manual_seed(0)).double()
    windows = Measurement(
        losses, losses, torch.ones(12).double(), [str(number) for number in range(12)]
    )
    clips = [f"clip {number // 3}" for number in range(12)]
    grouped = windows.grouped(clips)
    (verdict,) = judge(grouped.losses, grouped.weights, 1.0, [0.1], torch.zeros(1))
    means = losses.reshape(4, 3).mean(1)
    assert verdict.standard_error == pytest.approx((means.std() / 2).item())


def test_an_example_without_weight_does_not_count():
    part = drawn(0, IDS)
    part.weights[2] = 0
    assert part.grouped(part.ids).layer_losses.tolist() == pytest.approx(part.layer_losses.tolist())
