from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cudt.config.tasks import Reviews as ReviewsSection
from cudt.models import unrolled
from cudt.models.unrolled import Config
from cudt.models.unrolled_network import UnrolledTransformer
from cudt.tasks import toys
from cudt.utils.errors import UserError


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
        [
            w + p
            for w, p in zip(
                model.words.weight[word].tolist(), model.positions.weight[t].tolist(), strict=True
            )
        ]
        for t, word in enumerate(words)
    ]
    states = []
    for layer in range(model.n_layers):
        w1, w2 = (weight.tolist() for weight in model.layer_weights(layer))
        y = [matvec(w1, token) for token in x]
        z = []
        for t in range(len(x)):
            weights = [
                math.exp(sum(a * b for a, b in zip(y[t], y[u], strict=True))) for u in range(len(x))
            ]
            total = sum(weights)
            z.append(
                [sum(w * x[u][i] for u, w in enumerate(weights)) / total for i in range(len(x[0]))]
            )
        eta = model.layer.step_size
        n = len(w2)
        w_s = [
            [(1 - eta) * (i == j) - eta / 2 * (w2[i][j] + w2[j][i]) for j in range(n)]
            for i in range(n)
        ]
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
            assert torch.allclose(
                state[row, : len(words)], torch.tensor(expected, dtype=torch.double), atol=1e-10
            )


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
                w_s = (1 - self.m.layer.step_size) * torch.eye(
                    len(w2)
                ) - self.m.layer.step_size / 2 * (w2 + w2.T)
                x = (scores.softmax(-1) @ x @ w_s.double()).relu()
            pooled = torch.stack([row[keep].mean(0) for row, keep in zip(x, mask, strict=True)])
            return self.m.head(pooled)

    model, batch = model_and_batch()
    *_, last = model.layer_states(model.signal(batch)[0], batch)
    assert torch.allclose(model.readout(last, batch), Plain(model)(batch["input_ids"]), atol=1e-10)


def test_padding_changes_no_answer():
    model, batch = model_and_batch()
    padded = {
        **batch,
        **{key: nn.functional.pad(batch[key], [0, 3]) for key in ("input_ids", "attention_mask")},
    }
    for state, wide in zip(
        model.layer_states(model.signal(batch)[0], batch),
        model.layer_states(model.signal(padded)[0], padded),
        strict=True,
    ):
        assert torch.allclose(model.readout(state, batch), model.readout(wide, padded), atol=1e-12)


def test_gradients_equal_finite_differences():
    model, batch = model_and_batch()

    def answers(signal: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [model.readout(state, batch) for state in model.layer_states(signal, batch)]
        )

    signal = model.signal(batch)[0].detach().requires_grad_()
    assert torch.autograd.gradcheck(answers, (signal,))


def test_tied_layers_share_their_weights():
    (tied, _), (free, _) = model_and_batch(tie_layers=True), model_and_batch()
    assert len(tied.w1) == 1
    assert len(free.w1) == 3
    assert tied.layer_weights(0)[0] is tied.layer_weights(2)[0]


def test_a_task_that_is_not_text_is_refused():
    with pytest.raises(UserError, match="model unrolled needs a text task"):
        unrolled.build(Config(name="unrolled"), object(), None)  # type: ignore[arg-type]


def test_pretrained_embeddings_are_refused_for_words_that_their_encoder_does_not_know():
    task = toys.reviews(ReviewsSection(name="reviews", train=4, validation=4, test=4), None, None)
    with pytest.raises(UserError, match="this task has its own vocabulary"):
        unrolled.build(Config(name="unrolled", embeddings_from="owner/name"), task, None)
