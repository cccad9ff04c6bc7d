from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn

from cudt.tasks import token_logits
from cudt.tasks.base import IGNORED
from cudt.tasks.head_gradient import HeadGradient
from cudt.tasks.labelled import Labelled
from cudt.tasks.token_logits import TokenLogits
from tests.products import Products

WORDS, WIDTH, LAYERS = 11, 6, 3
LABELS = torch.tensor(
    [[IGNORED, 3, 5, 0, IGNORED], [7, IGNORED, IGNORED, 1, 10], [2, IGNORED, IGNORED, IGNORED, 4]]
)
TOKENS = 8
EXAMPLES = torch.tensor([3.0, 5.0, 2.0])
#: ∂J/∂f_l of a Lagrangian: some negative, one 0.
LAYER_WEIGHTS = torch.tensor([-0.25, 0.0, 1.5])


@pytest.fixture(autouse=True)
def _chunks_of_three_rows(monkeypatch) -> None:
    monkeypatch.setattr(token_logits, "CHUNK", 3 * WORDS + 1)


def states_and_head(
    bias: bool = True, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], nn.Linear]:
    torch.manual_seed(0)
    states = [torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True) for _ in range(LAYERS)]
    return states, nn.Linear(WIDTH, WORDS, bias=bias, dtype=dtype)


def losses_of(
    states: list[Tensor], head: nn.Linear, announced: Tensor, labels: Tensor = LABELS
) -> Tensor:
    """The mean loss of each layer and example, with the gradient of the head attached."""
    gradient, labelled = HeadGradient(announced), Labelled.of({"labels": labels})
    answers = [
        TokenLogits(own, head, own.dtype).adding_to(gradient, row) for row, own in enumerate(states)
    ]
    return gradient.attach(torch.stack([answer.mean_losses(labelled) for answer in answers]))


def plain(states: list[Tensor], head: nn.Linear) -> Tensor:
    """The same losses by PyTorch's cross-entropy, example by example."""
    owners = (LABELS != IGNORED).nonzero()[:, 0]
    targets = LABELS[LABELS != IGNORED]
    return torch.stack(
        [
            torch.stack(
                [
                    F.cross_entropy(head(own)[owners == one], targets[owners == one])
                    for one in range(3)
                ]
            )
            for own in states
        ]
    )


def gradients(
    losses: Tensor, weights: Tensor, states: list[Tensor], head: nn.Linear
) -> list[Tensor]:
    return list(torch.autograd.grad((losses * weights).sum(), [*states, *head.parameters()]))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("factor", [1.0, -3.0, 1e-20])
def test_gradients_are_those_of_cross_entropy_for_any_common_factor(bias, factor):
    states, head = states_and_head(bias, torch.float64)
    weights = LAYER_WEIGHTS.double().unsqueeze(1) * EXAMPLES
    ours = gradients(losses_of(states, head, weights), factor * weights, states, head)
    expected = gradients(plain(states, head), factor * weights, states, head)
    for one, other in zip(ours, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14 * abs(factor))


def test_fp32_agrees_to_5e_7():
    states, head = states_and_head()
    weights = LAYER_WEIGHTS.unsqueeze(1) * EXAMPLES
    losses = losses_of(states, head, weights)
    assert torch.allclose(losses, plain(states, head), atol=5e-7)
    ours = gradients(losses, weights / EXAMPLES.sum(), states, head)
    expected = gradients(plain(states, head), weights / EXAMPLES.sum(), states, head)
    for one, other in zip(ours, expected, strict=True):
        assert torch.allclose(one, other, atol=5e-7)


def test_bfloat16_agrees_to_its_rounding():
    states, head = states_and_head()
    expected = gradients(plain(states, head), LAYER_WEIGHTS.unsqueeze(1) * EXAMPLES, states, head)
    weights = LAYER_WEIGHTS.unsqueeze(1) * EXAMPLES
    with torch.autocast("cpu", torch.bfloat16):
        losses = losses_of(states, head, weights)
    assert losses.dtype == torch.float32
    for one, other in zip(gradients(losses, weights, states, head), expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.allclose(one, other, atol=2e-2 * other.abs().max().item())


def test_three_products_for_each_layer_and_all_in_the_forward_pass():
    states, head = states_and_head(bias=False)
    weights = LAYER_WEIGHTS.unsqueeze(1) * EXAMPLES
    with Products() as counter:
        losses = losses_of(states, head, weights)
        assert counter.flops == 3 * LAYERS * 2 * TOKENS * WIDTH * WORDS
        (losses * weights).sum().backward()
    assert counter.flops == 3 * LAYERS * 2 * TOKENS * WIDTH * WORDS


def test_all_layers_add_to_one_buffer_which_becomes_the_gradient():
    head = states_and_head()[1]
    gradient = HeadGradient(LAYER_WEIGHTS.unsqueeze(1) * EXAMPLES)
    shares = [gradient.share(head, row) for row in range(LAYERS)]
    assert len({id(share.sums) for share in shares if share is not None}) == 1
    (buffer, _) = gradient._sums._sums  # type: ignore[union-attr]
    place = buffer.data_ptr()
    del buffer
    (
        gradient.attach(torch.ones(LAYERS, 3, requires_grad=True))
        * LAYER_WEIGHTS.unsqueeze(1)
        * EXAMPLES
    ).sum().backward()
    assert head.weight.grad is not None
    assert head.weight.grad.data_ptr() == place


@pytest.mark.parametrize("changed", ["one example", "one layer", "a layer of weight 0"])
def test_other_weights_than_announced_make_the_gradient_of_the_head_nan(changed):
    states, head = states_and_head()
    announced = LAYER_WEIGHTS.unsqueeze(1) * EXAMPLES
    found = announced.clone()
    where: Any = {
        "one example": (0, 1),
        "one layer": (2, slice(None)),
        "a layer of weight 0": (1, 2),
    }[changed]
    found[where] = found[where] * 1.1 + 0.1
    ours = gradients(losses_of(states, head, announced), found, states, head)
    assert all(one.isnan().all() for one in ours[LAYERS:])
    # Those of the states are right for any weights.
    expected = gradients(plain(states, head), found, states, head)
    for one, other in zip(ours[:LAYERS], expected[:LAYERS], strict=True):
        assert torch.allclose(one, other, atol=5e-7)


def test_nothing_is_attached_for_a_frozen_head_or_without_gradients():
    states, head = states_and_head()
    gradient = HeadGradient(torch.ones(LAYERS, 3))
    with torch.no_grad():
        assert gradient.share(head, 0) is None
    assert gradient.share(head.requires_grad_(False), 0) is None
    losses = torch.ones(LAYERS, 3)
    assert gradient.attach(losses) is losses
    losses_of(states, head, torch.ones(LAYERS, 3)).sum().backward()
    assert head.weight.grad is None
    assert states[0].grad is not None
