from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn

from cudt.tasks import token_logits
from cudt.tasks.token_logits import TokenLogits, fused_kernel

WORDS, WIDTH, TOKENS = 11, 6, 10


@pytest.fixture(autouse=True)
def _chunks_of_four_rows(monkeypatch) -> None:
    """Make ten tokens two full chunks and half of a third."""
    monkeypatch.setattr(token_logits, "CHUNK", 4 * WORDS + 3)


class CountingHead(nn.Linear):
    """A head that records the number of rows in each call."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__(WIDTH, WORDS, bias=bias)
        self.rows: list[int] = []

    def forward(self, states: Tensor) -> Tensor:
        self.rows.append(len(states))
        return super().forward(states)


def states_head_and_targets(bias: bool = True) -> tuple[Tensor, CountingHead, Tensor]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    states = torch.randn(TOKENS, WIDTH, generator=generator).requires_grad_()
    return states, CountingHead(bias), torch.randint(WORDS, (TOKENS,), generator=generator)


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
    assert head.rows == [4, 4, 2]
    assert torch.allclose(losses, naive(states, head, targets), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weights", ["ones", "each its own", "some zero"])
def test_gradients_of_a_weighted_sum_are_those_of_all_tokens_at_once(bias, weights):
    states, head, targets = states_head_and_targets(bias)
    own = torch.linspace(-1, 3, TOKENS)
    weight = {"ones": torch.ones(TOKENS), "each its own": own, "some zero": own * (torch.arange(TOKENS) % 3 > 0)}
    ours = gradients(TokenLogits(states, head).losses(targets), weight[weights], states, head)
    expected = gradients(naive(states, head, targets), weight[weights], states, head)
    assert len(ours) == 3 if bias else 2
    for one, other in zip(ours, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_each_token_gets_the_gradient_of_its_own_loss():
    states, head, targets = states_head_and_targets()
    weights = torch.linspace(-1, 3, TOKENS)
    (ours,) = torch.autograd.grad((weights * TokenLogits(states, head).losses(targets)).sum(), states)
    # ∂/∂state of w·(−log softmax(W·state + b)_t) is w·Wᵀ(softmax − e_t).
    by_hand = (head(states).softmax(-1) - F.one_hot(targets, WORDS)) @ head.weight * weights.unsqueeze(1)
    assert torch.allclose(ours, by_hand, atol=1e-5)


def test_losses_of_two_layers_add_up_in_the_gradient_of_one_head():
    states, head, targets = states_head_and_targets()
    layers = [states, states * 2]
    ours = torch.stack([TokenLogits(layer, head).losses(targets).mean() for layer in layers]).sum()
    expected = torch.stack([naive(layer, head, targets).mean() for layer in layers]).sum()
    (one,), (other,) = (torch.autograd.grad(loss, [head.weight]) for loss in (ours, expected))
    assert torch.allclose(one, other, atol=1e-5)


def test_logits_are_computed_in_chunks_and_again_in_the_backward_pass():
    states, head, targets = states_head_and_targets()
    losses = TokenLogits(states, head).losses(targets)
    assert sum(head.rows) == TOKENS
    losses.sum().backward()
    assert sum(head.rows) == 2 * TOKENS
    assert max(head.rows) == 4
    TokenLogits(states, head).losses_and_hits(targets)
    assert sum(head.rows) == 3 * TOKENS
    assert max(head.rows) == 4


def test_the_memory_of_autograd_grows_with_states_and_not_with_logits():
    states, head, targets = states_head_and_targets()
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        TokenLogits(states, head).losses(targets)
    assert not [shape for shape in kept if len(shape) == 2 and shape[1] == WORDS]


@pytest.mark.parametrize("chunk", [1, WORDS, 10**9])
def test_losses_do_not_depend_on_the_chunk_size(chunk, monkeypatch):
    states, head, targets = states_head_and_targets()
    monkeypatch.setattr(token_logits, "CHUNK", chunk)
    losses = TokenLogits(states, head).losses(targets)
    assert head.rows == ([TOKENS] if chunk == 10**9 else [1] * TOKENS)
    assert torch.allclose(losses, naive(states, head, targets), atol=1e-5)


def test_double_computes_softmax_in_fp64_and_the_product_in_the_heads_precision():
    states, head, targets = states_head_and_targets()
    doubled = TokenLogits(states, head).double()
    losses, _ = doubled.losses_and_hits(targets)
    assert losses.dtype == doubled.losses(targets).dtype == torch.float64
    logits = head(states).double()
    assert torch.allclose(losses, F.cross_entropy(logits, targets, reduction="none"), atol=1e-6)
    assert doubled.float().losses(targets).dtype == torch.float32


def test_fp64_distinguishes_small_losses_that_fp32_rounds_to_zero():
    head = nn.Linear(1, 2, bias=False)
    head.weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    answer, targets = TokenLogits(torch.tensor([[30.0], [32.0]]), head), torch.tensor([1, 1])
    assert answer.losses(targets).tolist() == [0, 0]
    # log(1 + e⁻ˣ) ≈ e⁻ˣ
    assert answer.double().losses(targets).tolist() == pytest.approx([9.3576e-14, 1.2664e-14], rel=0.02)


def test_a_head_in_bfloat16_has_losses_in_fp32():
    states, head, targets = states_head_and_targets()
    losses = TokenLogits(states.bfloat16(), head.bfloat16()).losses(targets)
    assert losses.dtype == torch.float32
    logits = head(states.bfloat16()).float()
    assert torch.allclose(losses, F.cross_entropy(logits, targets, reduction="none"), atol=1e-5)


def test_losses_and_hits_have_no_gradients_and_a_hit_is_the_most_likely_word():
    states, head, targets = states_head_and_targets()
    likeliest = head(states).argmax(-1)
    targets = torch.where(torch.arange(TOKENS) % 3 == 0, likeliest, (likeliest + 1) % WORDS)
    losses, hits = TokenLogits(states, head).losses_and_hits(targets)
    assert not losses.requires_grad
    assert torch.allclose(losses, naive(states, head, targets), atol=1e-5)
    assert hits.tolist() == [1.0, 0.0, 0.0] * 3 + [1.0]
    assert hits.dtype == losses.dtype == torch.float32


# ---------------------------------------------------------------- Liger's kernel, if it is installed


@pytest.fixture(autouse=True)
def look_again():
    """Clear the cache, since the kernel is searched once per process."""
    fused_kernel.cache_clear()
    yield
    fused_kernel.cache_clear()


def install_liger(monkeypatch, forward) -> list[object]:
    """Install a fake package with the same names; returns its fake function."""

    def liger_fused_linear_cross_entropy():
        return None

    names = ("liger_kernel", "liger_kernel.ops", "liger_kernel.transformers")
    inner = ("liger_kernel.ops.fused_linear_cross_entropy", "liger_kernel.transformers.functional")
    modules = {name: ModuleType(name) for name in (*names, *inner)}
    modules[inner[0]].__dict__["fused_linear_cross_entropy_forward"] = forward
    modules[inner[1]].__dict__["liger_fused_linear_cross_entropy"] = liger_fused_linear_cross_entropy
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return [liger_fused_linear_cross_entropy]


def test_without_liger_there_is_no_kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    assert fused_kernel() is None


def test_a_liger_with_a_gradient_for_each_token_is_used(monkeypatch):
    def forward(_input, weight, target, token_grad_output=None, chunk_mem_const=1):
        return None

    (function,) = install_liger(monkeypatch, forward)
    assert fused_kernel() is function


def test_a_liger_without_a_gradient_for_each_token_is_not_used(monkeypatch):
    def forward(_input, weight, target, chunk_mem_const=1):
        return None

    install_liger(monkeypatch, forward)
    assert fused_kernel() is None


def test_a_local_variable_is_not_taken_for_a_parameter(monkeypatch):
    def forward(_input, weight, target):
        token_grad_output = chunk_mem_const = target
        return weight, token_grad_output, chunk_mem_const

    install_liger(monkeypatch, forward)
    assert fused_kernel() is None


def test_a_liger_without_the_function_is_not_used(monkeypatch):
    install_liger(monkeypatch, lambda: None)
    monkeypatch.delattr(sys.modules["liger_kernel.transformers.functional"], "liger_fused_linear_cross_entropy")
    assert fused_kernel() is None


def test_the_kernel_is_not_used_on_the_cpu(monkeypatch):
    def forward(token_grad_output, chunk_mem_const):
        return None

    install_liger(monkeypatch, forward)
    states, head, targets = states_head_and_targets()
    assert torch.allclose(TokenLogits(states, head).losses(targets), naive(states, head, targets), atol=1e-5)
