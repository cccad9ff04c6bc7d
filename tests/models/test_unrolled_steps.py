from __future__ import annotations

import math

import pytest
import torch

from cudt.models.unrolled_steps import (
    attend,
    attention,
    attention_descent_step,
    attention_energy,
    largest_descending_step,
    pair_energy,
    relu_energy,
    relu_step,
)


def random_tokens(
    scale: float, seed: int, batch: int = 8, tokens: int = 7, width: int = 5
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch, tokens, width, dtype=torch.double, generator=generator)


ALL = torch.ones(8, 7, dtype=torch.bool)
IDENTITY = torch.eye(5, dtype=torch.double)
SCALES = [0.01, 0.1, 0.3, 1.0, 3.0, 10.0]

# ---------------------------------------------------------------- energies


def test_attention_energy_equals_a_literal_sum():
    y = random_tokens(0.7, 0)[:1]
    mask = torch.tensor([[True] * 5 + [False] * 2])
    expected = 0.0
    for t in range(5):
        expected += 0.5 * sum(v * v for v in y[0, t].tolist())
        for u in range(t):
            distance = sum(
                (a - b) ** 2 for a, b in zip(y[0, t].tolist(), y[0, u].tolist(), strict=True)
            )
            expected -= math.exp(-0.5 * distance)
    assert attention_energy(y, mask).item() == pytest.approx(expected, abs=1e-9)


def test_relu_energy_equals_a_literal_sum_and_is_infinite_below_zero():
    x = random_tokens(1.0, 0)[:1].abs()
    w2 = torch.randn(5, 5, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True] * 6 + [False]])
    expected = sum(0.5 * (x[0, t] @ w2 @ x[0, t] + x[0, t] @ x[0, t]).item() for t in range(6))
    assert relu_energy(x, w2, mask).item() == pytest.approx(expected, abs=1e-9)
    x[0, 6, 0] = -1.0
    assert relu_energy(x, w2, mask).item() == pytest.approx(expected, abs=1e-9)
    x[0, 5, 0] = -1e-9
    assert relu_energy(x, w2, mask).item() == math.inf


def scattered_tokens(scale: float, seed: int) -> torch.Tensor:
    """Tokens around a centre that is not the origin, which is where steps towards each other can
    lengthen vectors."""
    centre = torch.randn(
        8, 1, 5, dtype=torch.double, generator=torch.Generator().manual_seed(1000 + seed)
    )
    return random_tokens(scale, seed) + 5 * centre


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("tokens", [random_tokens, scattered_tokens])
def test_weighted_attention_never_raises_the_pair_energy(scale, tokens):
    for seed in range(50):
        y = tokens(scale, seed)
        after = attend(y, IDENTITY, ALL, weighted=True)
        assert (pair_energy(after, ALL) - pair_energy(y, ALL)).max().item() <= 1e-9


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("tokens", [random_tokens, scattered_tokens])
def test_the_step_of_the_proof_never_raises_the_attention_energy(scale, tokens):
    for seed in range(50):
        y = tokens(scale, seed)
        raised = attention_energy(attention_descent_step(y, ALL), ALL) - attention_energy(y, ALL)
        assert raised.max().item() <= 1e-9


def test_the_step_of_the_proof_is_the_preconditioned_gradient_step():
    y = random_tokens(0.7, 0).requires_grad_()
    (gradient,) = torch.autograd.grad(attention_energy(y, ALL).sum(), y)
    preconditioner = torch.exp(-0.5 * torch.cdist(y, y) ** 2).sum(-1, keepdim=True)
    assert torch.allclose(attention_descent_step(y, ALL), y - gradient / preconditioner, atol=1e-9)


def test_weighted_attention_can_raise_the_attention_energy_away_from_the_origin():
    # Two tokens far from each other are drawn outwards to a third; it is drawn inwards by both, but
    # only once.
    y = torch.tensor([[[100.0, 0.0], [99.0, 1.5], [99.0, -1.5]]], dtype=torch.double)
    mask = torch.ones(1, 3, dtype=torch.bool)
    after = attend(y, torch.eye(2, dtype=torch.double), mask, weighted=True)
    assert (attention_energy(after, mask) - attention_energy(y, mask)).item() > 1
    assert pair_energy(after, mask).item() < pair_energy(y, mask).item()
    assert (
        attention_energy(attention_descent_step(y, mask), mask).item()
        < attention_energy(y, mask).item()
    )


def test_unweighted_attention_promises_neither():
    for energy in (pair_energy, attention_energy):
        raised = max(
            (energy(attend(y, IDENTITY, ALL), ALL) - energy(y, ALL)).max().item()
            for y in (random_tokens(1.0, seed) for seed in range(50))
        )
        assert raised > 1e-3


def test_padding_takes_no_part_in_energies_or_steps():
    y, mask = random_tokens(0.7, 0), ALL.clone()
    mask[:, 5:] = False
    assert torch.allclose(attention_energy(y, mask), attention_energy(y[:, :5], ALL[:, :5]))
    assert torch.allclose(
        attention_descent_step(y, mask)[:, :5], attention_descent_step(y[:, :5], ALL[:, :5])
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_and_its_gradient_are_those_of_the_plain_formula(weighted, padded):
    y, mask = random_tokens(0.7, 0), ALL.clone()
    mask[::2, 5:] = not padded
    given = (y.requires_grad_(), mask if padded else None)
    logits = y @ y.transpose(-1, -2)
    if weighted:
        logits = logits - 0.5 * y.square().sum(-1).unsqueeze(-2)
    plain = torch.softmax(logits.masked_fill(~mask.unsqueeze(-2), -torch.inf), dim=-1)
    ours = attention(*given, weighted=weighted)
    weights = random_tokens(1.0, 1, width=7)
    (expected,), (found,) = (torch.autograd.grad((weights * one).sum(), y) for one in (plain, ours))
    assert torch.allclose(ours, plain, atol=1e-14)
    assert torch.allclose(found, expected, atol=1e-13)
    assert torch.autograd.gradcheck(lambda given: attention(given, mask, weighted=weighted), (y,))


def test_relu_step_up_to_its_bound_never_raises_its_energy():
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        w2 = torch.randn(5, 5, dtype=torch.double, generator=generator)
        bound = min(largest_descending_step(w2), 10.0)
        x = random_tokens(1.0, seed).abs()
        for share in (0.1, 0.5, 0.999):
            after = relu_step(x, w2, share * bound)
            assert (relu_energy(after, w2, ALL) - relu_energy(x, w2, ALL)).max().item() <= 1e-9


def test_relu_step_far_above_its_bound_raises_its_energy():
    w2 = torch.eye(5, dtype=torch.double) * 3
    # Curvature 4 along a direction in which a long step overshoots; minus signs would be cut off by
    # the ReLU.
    w2[0, 1] = w2[1, 0] = -3.5
    x = random_tokens(1.0, 0).abs()
    bound = largest_descending_step(w2)
    after = relu_step(x, w2, 3 * bound)
    assert (relu_energy(after, w2, ALL) - relu_energy(x, w2, ALL)).max().item() > 0


def test_relu_step_is_the_gradient_step_of_its_energy():
    w2 = torch.randn(5, 5, dtype=torch.double, generator=torch.Generator().manual_seed(3))
    x = random_tokens(1.0, 0).abs().requires_grad_()
    (gradient,) = torch.autograd.grad(relu_energy(x, w2, ALL).sum(), x)
    assert torch.allclose(relu_step(x, w2, 0.3), torch.relu(x - 0.3 * gradient))


# ---------------------------------------------------------------- the model
