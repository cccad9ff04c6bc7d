"""The losses of all layers: weights that fit, and means over the examples of a split."""

from __future__ import annotations

import pytest
import torch

from cudt.models.layer_losses import Measurement
from cudt.training.train import assemble_model
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe


def test_weights_of_another_model_are_refused():
    problem = assemble_model(tiny_recipe(), None, torch.device("cpu"))
    weights = problem.learned_weights()
    name = sorted(weights)[0]
    with pytest.raises(UserError, match="does not fit this model: unexpected key 'strange'"):
        problem.load_learned_weights({**weights, "strange": weights[name]})
    del weights[name]
    with pytest.raises(UserError, match=f"does not fit this model: missing key '{name}'"):
        problem.load_learned_weights(weights)


def test_means_are_weighted_and_grouping_by_example_keeps_them():
    losses, scores = torch.rand(2, 3, 8, dtype=torch.double, generator=torch.Generator())
    weights = torch.arange(1.0, 9.0).double()
    parts = [
        Measurement(losses[:, own], scores[:, own], weights[own], list(ids))
        for own, ids in ((slice(4), "bacd"), (slice(4, 8), "dcab"))
    ]
    joined = Measurement.joined(parts)
    by_hand = (losses * weights).sum(1) / 36
    assert joined.layer_losses.tolist() == pytest.approx(by_hand.tolist())
    grouped = joined.grouped(joined.ids)
    assert grouped.ids == ["a", "b", "c", "d"]
    assert grouped.layer_losses.tolist() == pytest.approx(by_hand.tolist())
    assert grouped.layer_scores.tolist() == pytest.approx(joined.layer_scores.tolist())
    # b is the first of the first part and the last of the second, with weights 1 and 8.
    wanted = (losses[:, 0] + 8 * losses[:, 7]) / 9
    assert grouped.losses[:, 1].tolist() == pytest.approx(wanted.tolist())
