"""LayerwiseDescent as a module: checkpoints, devices, precision."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent

# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nupi"])
@pytest.mark.parametrize(("resilience", "beta"), [("none", None), ("slack", 2.0), ("decay", 2.0)])
def test_200_steps_equal_100_and_reload_and_100(resilience, beta, optimizer):
    losses = torch.rand(200, 4, generator=torch.Generator().manual_seed(1)) + 0.5

    def fresh() -> LayerwiseDescent:
        return LayerwiseDescent(
            4, 0.1, 1.0, resilience=resilience, beta=beta, dual=Dual(optimizer=optimizer)
        )

    whole, first, second = fresh(), fresh(), fresh()
    for f in losses:
        whole.dual_step(f)
    for f in losses[:100]:
        first.dual_step(f)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    for f in losses[100:]:
        second.dual_step(f)
    assert torch.equal(whole.multiplier_values, second.multiplier_values)
    assert whole.multiplier_values.max() > 0


def trained(
    resilience: str = "slack", beta: float | None = 2.0, optimizer: str = "adam"
) -> LayerwiseDescent:
    """A problem of three layers whose multipliers, slack and dual optimiser are not at their
    start."""
    dual = Dual(optimizer=optimizer, learning_rate=0.1)
    descent = LayerwiseDescent(3, 0.1, 1.0, resilience=resilience, beta=beta, dual=dual)  # type: ignore[arg-type]
    for slack in descent.slack_parameters():
        slack.data.copy_(torch.tensor([0.1, 0.0, 0.2]))
    for f in ([1.2, 1.3, 1.1], [0.9, 1.3, 1.0]):
        descent.dual_step(torch.tensor(f))
    return descent


def assert_same_state(one: LayerwiseDescent, other: LayerwiseDescent) -> None:
    """The same multipliers and slack now, and after another step, which depends on the dual
    optimiser's state."""
    for _ in range(2):
        assert torch.equal(one.multiplier_values, other.multiplier_values)
        assert torch.equal(one.slack, other.slack)
        assert one.multiplier_values.max() > 0
        for descent in (one, other):
            descent.dual_step(torch.tensor([1.1, 0.9, 1.4]))


def restored() -> LayerwiseDescent:
    return LayerwiseDescent(3, 0.1, 1.0, resilience="slack", beta=2.0, dual=Dual(learning_rate=0.1))


def test_a_module_that_contains_the_problem_saves_and_restores_it():
    descent, loaded = trained(), restored()
    whole, other = (
        torch.nn.ModuleDict({"model": torch.nn.Linear(2, 2), "descent": one})
        for one in (descent, loaded)
    )
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    assert other.load_state_dict(torch.load(file, weights_only=True)) == ([], [])
    assert all(map(torch.equal, whole.parameters(), other.parameters()))
    assert_same_state(descent, loaded)


def test_a_checkpoint_of_another_number_of_layers_is_refused():
    state = LayerwiseDescent(1, 0.1, 1.0).state_dict()
    with pytest.raises(ValueError, match="it has 1 multipliers, and the problem has 3 layers"):
        LayerwiseDescent(3, 0.1, 1.0).load_state_dict(state)


def test_a_copy_steps_like_the_original_and_apart_from_it():
    one = trained()
    other = copy.deepcopy(one)
    assert_same_state(one, other)
    before = one.multiplier_values.clone()
    other.dual_step(torch.tensor([2.0, 2.0, 2.0]))
    assert torch.equal(one.multiplier_values, before)


# ---------------------------------------------------------------- a module


def test_the_multipliers_are_no_parameters_and_the_slack_is():
    descent = trained()
    assert list(descent.parameters()) == list(descent.slack_parameters())
    before = descent.multiplier_values.clone()
    optimizer = torch.optim.SGD(descent.parameters(), lr=1.0)
    descent(torch.tensor([1.0, 1.0, 1.0])).backward()
    optimizer.step()
    assert torch.equal(descent.multiplier_values, before)
    assert not torch.allclose(descent.slack, torch.tensor([0.1, 0.0, 0.2]))
    for resilience, beta in (("none", None), ("decay", 2.0)):
        assert list(trained(resilience, beta).parameters()) == []


@pytest.mark.parametrize("optimizer", ["adam", "nupi"])
def test_moving_to_a_device_moves_multipliers_slack_and_the_dual_optimisers_state(optimizer):
    # The meta device holds no numbers, and is the second device that every machine has.
    descent = trained(optimizer=optimizer)
    whole = torch.nn.Sequential(descent).to("meta")
    assert whole[0] is descent
    assert descent.multiplier_values.device.type == descent.slack.device.type == "meta"
    (weight,) = descent.dual_optimizer.param_groups[0]["params"]
    assert weight is descent._multiplier.weight
    moments = [
        value for name, value in descent.dual_optimizer.state[weight].items() if name != "step"
    ]
    assert moments
    assert all(value.device.type == "meta" for value in moments if isinstance(value, torch.Tensor))


def test_multipliers_and_slack_keep_their_precision():
    descent, same = trained(), trained()
    torch.nn.Sequential(descent).half()
    assert descent.multiplier_values.dtype == descent.slack.dtype == torch.float32
    assert_same_state(descent, same)
