"""Losses over a vocabulary in chunks, against PyTorch's cross-entropy over all tokens at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cudt.models import vocabulary
from cudt.models.vocabulary import TokenLogits
from cudt.tasks.base import IGNORED

_ = IGNORED
WORDS, WIDTH, LAYERS, TOKENS = 11, 6, 3, 8
LABELS = torch.tensor([[_, 3, 5, 0, _], [7, _, _, 1, 10], [2, _, _, _, 4]])
BATCH = {"labels": LABELS}
#: ∂J/∂f_l of a Lagrangian, one of them negative; and the numbers of tokens of the examples.
WEIGHTS = torch.tensor([-0.25, 0.5, 1.5]).unsqueeze(1) * torch.tensor([3.0, 3.0, 2.0])


@pytest.fixture(autouse=True)
def _chunks_of_three_rows(monkeypatch) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK", 3 * WORDS + 1)


def states_and_head(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], nn.Linear]:
    torch.manual_seed(0)
    states = [torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True) for _ in range(LAYERS)]
    return states, nn.Linear(WIDTH, WORDS, bias=False, dtype=dtype)


def losses_of(states: list[Tensor], head: nn.Linear) -> Tensor:
    """The mean loss of each layer and example."""
    return torch.stack([TokenLogits(own, head, own.dtype).mean_losses(BATCH) for own in states])


def plain(states: list[Tensor], head: nn.Linear) -> Tensor:
    """The same losses by PyTorch, example by example."""
    owners, targets = (LABELS != IGNORED).nonzero()[:, 0], LABELS[LABELS != IGNORED]
    losses = [
        F.cross_entropy(head(own)[owners == n], targets[owners == n])
        for own in states
        for n in range(3)
    ]
    return torch.stack(losses).reshape(LAYERS, 3)


def gradients(losses: Tensor, weights: Tensor, states: list[Tensor], head: nn.Linear) -> list[Any]:
    return list(torch.autograd.grad((losses * weights).sum(), [*states, *head.parameters()]))


@pytest.mark.parametrize("chunk", [1, WORDS, 3 * WORDS + 1, 10**9])
def test_losses_and_gradients_are_those_of_cross_entropy_whatever_the_chunks(chunk, monkeypatch):
    monkeypatch.setattr(vocabulary, "CHUNK", chunk)
    states, head = states_and_head()
    losses, expected = losses_of(states, head), plain(states, head)
    assert torch.allclose(losses, expected, rtol=1e-12)
    pairs = [gradients(one, WEIGHTS.double(), states, head) for one in (losses, expected)]
    for one, other in zip(*pairs, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        assert torch.allclose(losses_of(states, head), expected, rtol=1e-12)


def test_fp32_agrees_to_1e_6_and_bf16_to_its_rounding():
    states, head = states_and_head(dtype=torch.float32)
    expected = gradients(plain(states, head), WEIGHTS, states, head)
    for kind, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 3e-2)):
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            losses = losses_of(states, head)
        assert losses.dtype == torch.float32
        for one, other in zip(gradients(losses, WEIGHTS, states, head), expected, strict=True):
            assert one.dtype == torch.float32
            assert torch.allclose(one, other, atol=tolerance * other.abs().max().item())


class Products(TorchDispatchMode):
    """`flops` is 2·rows·columns·inner size of all products of matrices so far."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "addmm_"):
            left, right = args[-2:]
            self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("trained", "both"), [(False, 2), (True, 4)])
def test_the_number_of_products_of_the_size_of_the_head(trained, both):
    states, head = states_and_head()
    head.requires_grad_(trained)
    one = LAYERS * 2 * TOKENS * WIDTH * WORDS
    with Products() as counter:
        losses = losses_of(states, head)
        assert counter.flops == 2 * one
        (losses * WEIGHTS).sum().backward()
    assert counter.flops == both * one
    assert states[0].grad is not None
    assert (head.weight.grad is not None) == trained


def test_autograd_keeps_states_and_no_logits():
    states, head = states_and_head()
    kept: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tuple(tensor.shape)), lambda nothing: nothing
    ):
        losses_of(states, head)
    assert (TOKENS, WIDTH) in kept
    assert not [shape for shape in kept if len(shape) == 2 and shape[1] == WORDS]


def test_a_hit_is_the_likeliest_word_and_judging_has_no_gradients():
    (states, *_), head = states_and_head()
    likeliest = head(states).argmax(-1)
    labels = LABELS.clone()
    wanted = torch.where(torch.arange(TOKENS) % 3 == 0, likeliest, (likeliest + 1) % WORDS)
    labels[labels != IGNORED] = wanted
    losses, hits = TokenLogits(states, head).double().judge({"labels": labels})
    assert not losses.requires_grad
    assert losses.dtype == hits.dtype == torch.float64
    assert hits.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 2])
