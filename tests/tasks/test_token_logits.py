from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cudt.tasks import token_logits
from cudt.tasks.token_logits import TokenLogits
from tests.products import Products

WORDS, WIDTH, TOKENS = 11, 6, 10


@pytest.fixture(autouse=True)
def _chunks_of_four_rows(monkeypatch) -> None:
    """Make ten tokens two full chunks and half of a third."""
    monkeypatch.setattr(token_logits, "CHUNK", 4 * WORDS + 3)


def states_head_and_targets(bias: bool = True) -> tuple[Tensor, nn.Linear, Tensor]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    states = torch.randn(TOKENS, WIDTH, generator=generator).requires_grad_()
    return (
        states,
        nn.Linear(WIDTH, WORDS, bias=bias),
        torch.randint(WORDS, (TOKENS,), generator=generator),
    )


def naive(states: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    """−log softmax, all tokens at once, without chunks and without PyTorch's cross-entropy."""
    logits = head(states)
    return logits.logsumexp(-1) - logits[torch.arange(len(targets)), targets]


def gradients(losses: Tensor, weights: Tensor, states: Tensor, head: nn.Linear) -> list[Tensor]:
    return list(torch.autograd.grad((weights * losses).sum(), [states, *head.parameters()]))


@pytest.mark.parametrize("bias", [True, False])
def test_losses_in_chunks_are_those_of_all_tokens_at_once(bias):
    states, head, targets = states_head_and_targets(bias)
    losses = TokenLogits(states, head).losses(targets)
    assert losses.dtype == torch.float32
    assert torch.allclose(losses, naive(states, head, targets), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weights", ["ones", "each its own", "some zero"])
def test_gradients_of_a_weighted_sum_are_those_of_all_tokens_at_once(bias, weights):
    states, head, targets = states_head_and_targets(bias)
    own = torch.linspace(-1, 3, TOKENS)
    weight = {
        "ones": torch.ones(TOKENS),
        "each its own": own,
        "some zero": own * (torch.arange(TOKENS) % 3 > 0),
    }
    ours = gradients(TokenLogits(states, head).losses(targets), weight[weights], states, head)
    expected = gradients(naive(states, head, targets), weight[weights], states, head)
    assert len(ours) == 3 if bias else 2
    for one, other in zip(ours, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def products(states: Tensor, head: nn.Linear, targets: Tensor) -> tuple[float, float]:
    """The number of products of the size of the head in the forward pass, and in both passes."""
    one = 2 * TOKENS * WIDTH * WORDS
    with Products() as counter:
        losses = TokenLogits(states, head).losses(targets)
        forward = counter.flops / one
        if losses.requires_grad:
            losses.sum().backward()
    return forward, counter.flops / one


def test_a_frozen_head_takes_two_products_and_both_are_in_the_forward_pass():
    states, head, targets = states_head_and_targets()
    assert products(states, head.requires_grad_(False), targets) == (2, 2)


def test_a_trained_head_whose_weights_are_not_announced_takes_four_products():
    assert products(*states_head_and_targets()) == (2, 4)


def test_the_gradient_is_that_of_finite_differences():
    states, head, targets = states_head_and_targets()

    def losses(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given: Any = SimpleNamespace(weight=weight, bias=bias, parameters=lambda: [weight, bias])
        return TokenLogits(states, given, torch.float64).losses(targets)

    inputs = [one.detach().double().requires_grad_() for one in (states, *head.parameters())]
    assert torch.autograd.gradcheck(losses, inputs)


def test_the_memory_of_autograd_grows_with_states_and_not_with_logits():
    states, head, targets = states_head_and_targets()
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        TokenLogits(states, head).losses(targets)
    assert (TOKENS, WIDTH) in kept
    assert not [shape for shape in kept if len(shape) == 2 and shape[1] == WORDS]


def test_softmax_overwrites_the_logits_of_a_chunk():
    states, head, targets = states_head_and_targets()
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            if isinstance(made, Tensor) and made.dim() == 2 and made.shape[1] == WORDS:
                sizes.append(made.untyped_storage().data_ptr())
            return made

    with Watch():
        TokenLogits(states, head.requires_grad_(False)).losses(targets)
    assert len(set(sizes) - {head.weight.untyped_storage().data_ptr()}) == 1


@pytest.mark.parametrize("chunk", [1, WORDS, 10**9])
def test_losses_do_not_depend_on_the_chunk_size(chunk, monkeypatch):
    states, head, targets = states_head_and_targets()
    monkeypatch.setattr(token_logits, "CHUNK", chunk)
    losses = TokenLogits(states, head).losses(targets)
    assert torch.allclose(losses, naive(states, head, targets), atol=1e-5)


def test_a_head_in_bfloat16_has_losses_in_fp32():
    states, head, targets = states_head_and_targets()
    losses = TokenLogits(states.bfloat16(), head.bfloat16()).losses(targets)
    assert losses.dtype == torch.float32
    logits = head(states.bfloat16()).float()
    assert torch.allclose(losses, F.cross_entropy(logits, targets, reduction="none"), atol=1e-5)


@pytest.mark.parametrize("trained", [True, False])
def test_gradients_of_a_head_in_bfloat16_are_those_of_fp32_to_its_rounding(trained):
    states, head, targets = states_head_and_targets()
    weights = torch.linspace(-1, 3, TOKENS)
    expected = gradients(naive(states, head, targets), weights, states, head)
    small, rounded = (
        states.detach().bfloat16().requires_grad_(),
        head.bfloat16().requires_grad_(trained),
    )
    (weights * TokenLogits(small, rounded).losses(targets)).sum().backward()
    for one, other in zip(
        [small.grad, *(weight.grad for weight in rounded.parameters())], expected, strict=True
    ):
        if one is None:
            assert not trained
            continue
        assert one.dtype == torch.bfloat16
        assert torch.allclose(one.float(), other, atol=2e-2 * other.abs().max().item())


def test_losses_and_hits_have_no_gradients_and_a_hit_is_the_most_likely_word():
    states, head, targets = states_head_and_targets()
    likeliest = head(states).argmax(-1)
    targets = torch.where(torch.arange(TOKENS) % 3 == 0, likeliest, (likeliest + 1) % WORDS)
    losses, hits = TokenLogits(states, head).losses_and_hits(targets)
    assert not losses.requires_grad
    assert torch.allclose(losses, naive(states, head, targets), atol=1e-5)
    assert hits.tolist() == [1.0, 0.0, 0.0] * 3 + [1.0]
    assert hits.dtype == losses.dtype == torch.float32
