from __future__ import annotations

import pytest
import torch

from cudt.method.feasibility import judge
from cudt.method.measurement import Measurement

IDS = ["b", "a", "c", "d"]


def drawn(seed: int, ids: list[str]) -> Measurement:
    """Losses of the same examples under one noise seed, in another order; longer examples weigh more."""
    generator = torch.Generator().manual_seed(seed)
    rows = {one: torch.rand(2, 3, generator=generator).double() for one in IDS}
    losses, scores = (torch.stack([rows[one][row] for one in ids], 1) for row in (0, 1))
    weights = torch.tensor([1.0 + seed + IDS.index(one) for one in ids]).double()
    return Measurement(losses, scores, weights, ids)


def test_an_average_over_noise_seeds_has_the_means_of_all_of_them():
    parts = [drawn(0, IDS), drawn(1, IDS[::-1])]
    averaged, joined = Measurement.averaged(parts), Measurement.joined(parts)
    assert averaged.ids == ["a", "b", "c", "d"]
    assert averaged.layer_losses.tolist() == pytest.approx(joined.layer_losses.tolist())
    assert averaged.layer_scores.tolist() == pytest.approx(joined.layer_scores.tolist())


def test_the_average_matches_examples_by_id():
    first, second = drawn(0, IDS), drawn(1, IDS[::-1])
    weights = first.weights[0], second.weights[3]
    wanted = (first.losses[:, 0] * weights[0] + second.losses[:, 3] * weights[1]) / sum(weights)
    assert Measurement.averaged([first, second]).losses[:, 1].tolist() == pytest.approx(wanted.tolist())


def test_the_same_draw_twice_is_not_twice_the_evidence():
    once = drawn(0, IDS)
    twice = [judge(Measurement.averaged(parts), 1.0, [0.1] * 3, torch.zeros(3)) for parts in ([once], [once, once])]
    assert [one.standard_error for one in twice[1]] == pytest.approx([one.standard_error for one in twice[0]])
    joined = judge(Measurement.joined([once, once]), 1.0, [0.1] * 3, torch.zeros(3))
    assert joined[0].standard_error < 0.8 * twice[0][0].standard_error


def test_an_example_without_weight_does_not_count():
    part = drawn(0, IDS)
    part.weights[2] = 0
    averaged = Measurement.averaged([part, part])
    assert averaged.layer_losses.tolist() == pytest.approx(part.layer_losses.tolist())
