from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cudt.errors import UserError
from cudt.models import unrolled
from cudt.models.unrolled import (
    Config,
    UnrolledTransformer,
    attend,
    attention_descent_step,
    attention_energy,
    largest_descending_step,
    pair_energy,
    relu_energy,
    relu_step,
)
from cudt.tasks import reviews


def random_tokens(scale: float, seed: int, batch: int = 8, tokens: int = 7, width: int = 5) -> torch.Tensor:
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
            distance = sum((a - b) ** 2 for a, b in zip(y[0, t].tolist(), y[0, u].tolist(), strict=True))
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
    """Tokens around a centre that is not the origin, which is where steps towards each other can lengthen vectors."""
    centre = torch.randn(8, 1, 5, dtype=torch.double, generator=torch.Generator().manual_seed(1000 + seed))
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


@pytest.mark.parametrize("scale", SCALES)
def test_weighted_attention_never_raises_the_attention_energy_of_centred_tokens(scale):
    for seed in range(50):
        y = random_tokens(scale, seed)
        raised = attention_energy(attend(y, IDENTITY, ALL, weighted=True), ALL) - attention_energy(y, ALL)
        assert raised.max().item() <= 1e-9


def test_weighted_attention_can_raise_the_attention_energy_away_from_the_origin():
    # Two tokens far from each other are drawn outwards to a third; it is drawn inwards by both, but only once.
    y = torch.tensor([[[100.0, 0.0], [99.0, 1.5], [99.0, -1.5]]], dtype=torch.double)
    mask = torch.ones(1, 3, dtype=torch.bool)
    after = attend(y, torch.eye(2, dtype=torch.double), mask, weighted=True)
    assert (attention_energy(after, mask) - attention_energy(y, mask)).item() > 1
    assert pair_energy(after, mask).item() < pair_energy(y, mask).item()
    assert attention_energy(attention_descent_step(y, mask), mask).item() < attention_energy(y, mask).item()


def test_weighted_attention_descends_through_any_projection():
    w1 = torch.randn(3, 5, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    for seed in range(50):
        x = scattered_tokens(1.0, seed)
        after = attend(x, w1, ALL, weighted=True)
        assert (pair_energy(after @ w1.T, ALL) - pair_energy(x @ w1.T, ALL)).max().item() <= 1e-9


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
    assert torch.allclose(attention_descent_step(y, mask)[:, :5], attention_descent_step(y[:, :5], ALL[:, :5]))


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
    # Curvature 4 along a direction in which a long step overshoots; minus signs would be cut off by the ReLU.
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


def model_and_batch(**changes):
    torch.manual_seed(0)
    config = Config(name="unrolled", layers=3, width=6, attention_width=4, **changes)
    model = UnrolledTransformer(config, nn.Embedding(11, 6), max_length=8, n_classes=2).double()
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 1, 0]])
    return model, {"ids": ["a", "b", "c"], "input_ids": ids, "attention_mask": (ids > 0).long()}


def literal_states(model: UnrolledTransformer, words: list[int]) -> list[list[list[float]]]:
    """The equations token by token on lists of numbers."""

    def matvec(matrix, vector):
        return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]

    x = [
        [w + p for w, p in zip(model.words.weight[word].tolist(), model.positions.weight[t].tolist(), strict=True)]
        for t, word in enumerate(words)
    ]
    states = []
    for layer in range(model.n_layers):
        w1, w2 = (weight.tolist() for weight in model.layer_weights(layer))
        y = [matvec(w1, token) for token in x]
        z = []
        for t in range(len(x)):
            weights = [math.exp(sum(a * b for a, b in zip(y[t], y[u], strict=True))) for u in range(len(x))]
            total = sum(weights)
            z.append([sum(w * x[u][i] for u, w in enumerate(weights)) / total for i in range(len(x[0]))])
        eta = model.step_size
        n = len(w2)
        w_s = [[(1 - eta) * (i == j) - eta / 2 * (w2[i][j] + w2[j][i]) for j in range(n)] for i in range(n)]
        x = [[max(0.0, value) for value in matvec(w_s, token)] for token in z]
        states.append(x)
    return states


@pytest.mark.parametrize("tie_layers", [False, True])
def test_batched_layers_equal_the_equations_token_by_token(tie_layers):
    model, batch = model_and_batch(tie_layers=tie_layers)
    signal, _ = model.signal(batch)
    states = list(model.layer_states(signal, batch))
    assert len(states) == model.n_layers == 3
    for row, words in enumerate([[3, 4, 5, 6], [7, 8], [9, 10, 1]]):
        for state, expected in zip(states, literal_states(model, words), strict=True):
            assert torch.allclose(state[row, : len(words)], torch.tensor(expected, dtype=torch.double), atol=1e-10)


def test_answer_at_layer_l_is_that_of_the_plain_model():
    class Plain(nn.Module):
        """The same network written without any thought of layers."""

        def __init__(self, model: UnrolledTransformer) -> None:
            super().__init__()
            self.m = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            mask = ids > 0
            x = self.m.words(ids) + self.m.positions(torch.arange(ids.shape[1]))
            for layer in range(self.m.n_layers):
                w1, w2 = self.m.layer_weights(layer)
                y = x @ w1.T
                scores = (y @ y.mT).masked_fill(~mask[:, None], float("-inf"))
                w_s = (1 - self.m.step_size) * torch.eye(len(w2)) - self.m.step_size / 2 * (w2 + w2.T)
                x = (scores.softmax(-1) @ x @ w_s.double()).relu()
            pooled = torch.stack([row[keep].mean(0) for row, keep in zip(x, mask, strict=True)])
            return self.m.head(pooled)

    model, batch = model_and_batch()
    *_, last = model.layer_states(model.signal(batch)[0], batch)
    assert torch.allclose(model.readout(last, batch), Plain(model)(batch["input_ids"]), atol=1e-10)


def test_padding_changes_no_answer():
    model, batch = model_and_batch()
    padded = {**batch, **{key: nn.functional.pad(batch[key], [0, 3]) for key in ("input_ids", "attention_mask")}}
    for state, wide in zip(
        model.layer_states(model.signal(batch)[0], batch),
        model.layer_states(model.signal(padded)[0], padded),
        strict=True,
    ):
        assert torch.allclose(model.readout(state, batch), model.readout(wide, padded), atol=1e-12)


def test_gradients_equal_finite_differences():
    model, batch = model_and_batch()

    def answers(signal: torch.Tensor) -> torch.Tensor:
        return torch.stack([model.readout(state, batch) for state in model.layer_states(signal, batch)])

    signal = model.signal(batch)[0].detach().requires_grad_()
    assert torch.autograd.gradcheck(answers, (signal,))


def test_tied_layers_share_their_weights():
    (tied, _), (free, _) = model_and_batch(tie_layers=True), model_and_batch()
    assert len(tied.w1) == 1
    assert len(free.w1) == 3
    assert tied.layer_weights(0)[0] is tied.layer_weights(2)[0]


def test_a_task_that_is_not_text_is_refused():
    with pytest.raises(UserError, match="classify sequences of words"):
        unrolled.build(Config(name="unrolled"), object(), None)  # type: ignore[arg-type]


def test_pretrained_embeddings_are_refused_for_words_that_their_encoder_does_not_know():
    task = reviews.build(reviews.Config(name="reviews", train=4, validation=4, test=4), None, None)
    with pytest.raises(UserError, match="the task has words of its own"):
        unrolled.build(Config(name="unrolled", embeddings_from="owner/name"), task, None)
