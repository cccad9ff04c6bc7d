from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from cudt.models import dust, dust_network
from cudt.models.dust import Config
from cudt.models.dust_network import (
    Dust,
    dust_energy,
    lista_loss,
    lista_step,
    soft_threshold,
    squared_norm,
)
from tests.shapes import batch_of, tiny_videos

SCALES = [0.01, 0.1, 1.0, 10.0, 255.0]


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(
        shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed)
    )


def model_of(size: int = 8, frames: int = 3, spread: float = 0.2, **changes: Any) -> Dust:
    """A DUST whose dictionaries have left their start, each in its own direction."""
    config = Config(**{"name": "dust", "layers": 3, "patch": 4, "atoms": 5, **changes})
    model = dust.build(config, tiny_videos(size, frames), None).double()
    for number, dictionary in enumerate(model.dictionaries):
        dictionary.data += random(*dictionary.shape, seed=number, scale=spread)
    return model


# ---------------------------------------------------------------- the equations, one token at a
# time


def literal_codes(
    x: list[Any], dictionaries: list[list[list[float]]], sparsity: float, correlation: float
) -> list[Any]:
    """D h_t of each layer for one sequence of patches, on lists of numbers."""
    n_pixels, n_atoms = len(dictionaries[0]), len(dictionaries[0][0])
    h = [[0.0] * n_atoms for _ in x]
    layers = []
    for d in dictionaries:
        c = float(np.linalg.svd(np.array(d))[1][0]) ** 2
        gram = [[sum(row[i] * row[j] for row in d) for j in range(n_atoms)] for i in range(n_atoms)]
        u_matrix = [[(i == j) - gram[i][j] / c for j in range(n_atoms)] for i in range(n_atoms)]
        v_matrix = [[d[p][i] / c for p in range(n_pixels)] for i in range(n_atoms)]
        z = []
        for t in range(len(x)):
            logits = [
                sum(h[t][i] * gram[i][j] * h[u][j] for i in range(n_atoms) for j in range(n_atoms))
                for u in range(len(x))
            ]
            weights = [math.exp(logit - max(logits)) for logit in logits]
            shares = [weight / sum(weights) for weight in weights]
            z.append(
                [
                    correlation * sum(share * h[u][i] for u, share in enumerate(shares))
                    for i in range(n_atoms)
                ]
            )
        h = []
        for t in range(len(x)):
            code = []
            for i in range(n_atoms):
                value = sum(u_matrix[i][j] * z[t][j] for j in range(n_atoms))
                value += sum(v_matrix[i][p] * x[t][p] for p in range(n_pixels))
                code.append(math.copysign(max(0.0, abs(value) - sparsity / c), value))
            h.append(code)
        layers.append(
            [
                [sum(d[p][i] * code[i] for i in range(n_atoms)) for p in range(n_pixels)]
                for code in h
            ]
        )
    return layers


def literal_frames(model: Dust, video: torch.Tensor) -> torch.Tensor:
    """What each layer makes of one video, patch position by patch position."""
    dictionaries = [model.dictionary(layer).tolist() for layer in range(model.n_layers)]
    made = torch.zeros(model.n_layers, *video.shape, dtype=torch.double)
    side = model.patch
    for top in range(0, video.shape[1], side):
        for left in range(0, video.shape[2], side):
            place = (slice(None), slice(top, top + side), slice(left, left + side))
            x = [frame.flatten().tolist() for frame in video[place]]
            for layer, patches in enumerate(
                literal_codes(x, dictionaries, model.sparsity, model.layer.correlation)
            ):
                made[layer][place] = torch.tensor(patches, dtype=torch.double).view(-1, side, side)
    return made


def answers(model: Dust, signal: torch.Tensor) -> torch.Tensor:
    batch = batch_of(signal)
    return torch.stack([model.readout(state, batch) for state in model.layer_states(signal, batch)])


@pytest.mark.parametrize("tie_layers", [False, True])
@pytest.mark.parametrize(("scale", "sparsity"), [(1.0, 0.05), (255.0, 0.9)])
@torch.no_grad()
def test_batched_layers_equal_the_equations_token_by_token(tie_layers, scale, sparsity):
    model = model_of(tie_layers=tie_layers, sparsity=sparsity, correlation=0.5)
    videos = scale * torch.rand(
        2, 3, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(1)
    )
    expected = torch.stack([literal_frames(model, video) for video in videos], dim=1)
    assert model.n_layers == len(expected) == 3
    assert expected.abs().amax((1, 2, 3, 4)).min() > 0.1 * scale
    assert torch.allclose(answers(model, videos), expected, rtol=1e-9, atol=1e-9 * scale)
    single = answers(model.float(), videos.float())
    assert torch.allclose(single.double(), expected, rtol=1e-5, atol=1e-5 * scale)


@torch.no_grad()
def test_attention_takes_part_in_every_layer_but_the_first():
    """Frames of one video attend to each other; codes that are all 0 change nothing."""
    model = model_of(sparsity=0.05, correlation=0.5)
    video = random(1, 3, 8, 8).abs()
    together = answers(model, video)
    apart = torch.cat([answers(model, video[:, t : t + 1]) for t in range(3)], dim=2)
    assert torch.allclose(together[0], apart[0])
    assert not torch.allclose(together[1], apart[1], atol=1e-3)


def test_gradients_equal_finite_differences_also_through_the_norm_of_the_dictionary():
    model = model_of(size=4, frames=2, patch=2, atoms=3, layers=2, sparsity=0.05)
    signal = random(1, 2, 4, 4, seed=3).requires_grad_()

    def of_all(video: torch.Tensor, *dictionaries: torch.Tensor) -> torch.Tensor:
        model.dictionary = lambda layer: dictionaries[layer]  # type: ignore[method-assign]
        return answers(model, video)

    assert torch.autograd.gradcheck(of_all, (signal, *model.dictionaries))


# ---------------------------------------------------------------- ‖D‖²


def test_the_squared_norm_is_the_largest_singular_value_squared_with_its_gradient():
    for seed in range(5):
        dictionary = random(4, 7, seed=seed).requires_grad_()
        assert squared_norm(dictionary).item() == pytest.approx(
            torch.linalg.matrix_norm(dictionary, 2).item() ** 2
        )
        assert torch.autograd.gradcheck(squared_norm, (dictionary,))


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e30])
def test_a_dictionary_that_left_the_numbers_has_no_norm_and_fails_nowhere(broken):
    dictionary = torch.ones(4, 6)
    dictionary[1, 2] = broken
    assert squared_norm(dictionary).isnan()


# ---------------------------------------------------------------- energies and what theory promises


def update(model: Dust) -> None:
    """An update in evaluation mode; fused optimisers do not count as writing."""
    with torch.enable_grad():
        answers(model, random(2, 3, 8, 8)).sum().backward()
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()


def write(weight: torch.Tensor) -> None:
    weight.mul_(1.5)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: write(model.dictionary(0)),
        lambda model: model.load_state_dict(
            {name: 2 * value for name, value in model.state_dict().items()}
        ),
        lambda model: update(model),
        lambda model: write(model.train().dictionary(0).data),
    ],
    ids=["in place", "loaded", "optimised", "trained"],
)
def test_norms_are_computed_once_without_gradients_until_the_weights_change(change, monkeypatch):
    model, signal = model_of(), random(2, 3, 8, 8)
    computed = mock.Mock(side_effect=squared_norm)
    monkeypatch.setattr(dust_network, "squared_norm", computed)
    model.eval()
    with torch.no_grad():
        first, again = answers(model, signal), answers(model, signal)
        assert torch.equal(first, again)
        assert computed.call_count == 1
        change(model)
        changed = answers(model, signal)
    assert torch.equal(changed, answers(model, signal))
    assert not torch.equal(changed, first)


def test_the_soft_threshold_is_that_of_torch():
    u = random(1000, scale=2.0)
    for threshold in (0.0, 0.3, 1.7):
        expected = F.softshrink(u, threshold)
        assert torch.allclose(
            soft_threshold(u, torch.tensor(threshold, dtype=torch.double)), expected, atol=1e-15
        )


def test_the_soft_threshold_has_the_gradients_of_its_two_sides():
    u = torch.tensor([-2.0, -0.5, 0.5, 2.0], dtype=torch.double, requires_grad=True)
    threshold = torch.tensor(1.0, dtype=torch.double, requires_grad=True)
    weights = torch.tensor([3.0, 5.0, 7.0, 11.0], dtype=torch.double)
    by_u, by_threshold = torch.autograd.grad(
        (weights * soft_threshold(u, threshold)).sum(), (u, threshold)
    )
    assert by_u.tolist() == [3, 0, 0, 11]
    assert torch.autograd.gradcheck(soft_threshold, (random(5, 7).requires_grad_(), threshold))
    assert by_threshold.item() == 3 - 11


def test_energies_equal_literal_sums():
    x, h, d = random(2, 3, 4, seed=0), random(2, 3, 6, seed=1), random(4, 6, seed=2)
    losses, energies = lista_loss(x, h, d, 0.7), dust_energy(x, h, d, 0.7, 0.3)
    for sequence in range(2):
        y = [
            [sum(d[p, i].item() * code[i].item() for i in range(6)) for p in range(4)]
            for code in h[sequence]
        ]
        expected = 0.0
        for t in range(3):
            loss = sum(0.5 * (x[sequence, t, p].item() - y[t][p]) ** 2 for p in range(4))
            loss += sum(0.7 * abs(value) for value in h[sequence, t].tolist())
            assert losses[sequence, t].item() == pytest.approx(loss)
            expected += loss + 0.3 * 0.5 * sum(value**2 for value in y[t])
            for u in range(t):
                expected -= 0.3 * math.exp(
                    -0.5 * sum((a - b) ** 2 for a, b in zip(y[t], y[u], strict=True))
                )
        assert energies[sequence].item() == pytest.approx(expected)


def test_a_step_is_a_proximal_gradient_step_on_the_lista_loss():
    x, z, d = random(9, 4, seed=0), random(9, 6, seed=1).requires_grad_(), random(4, 6, seed=2)
    (gradient,) = torch.autograd.grad(lista_loss(x, z, d, 0.0).sum(), z)
    c = 1.3 * squared_norm(d)
    expected = F.softshrink(z - gradient / c, 0.7 / c.item())
    assert torch.allclose(lista_step(x, z, z @ d.T, d, 0.7, c), expected, atol=1e-12)


def raised(
    x: torch.Tensor, z: torch.Tensor, d: torch.Tensor, sparsity: float, c: torch.Tensor
) -> torch.Tensor:
    """By how much of itself a step raises the LISTA loss of a token."""
    before = lista_loss(x, z, d, sparsity)
    return (lista_loss(x, lista_step(x, z, z @ d.T, d, sparsity, c), d, sparsity) - before) / before


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("length", [1.0, 1.5, 30.0])
def test_a_step_that_is_not_too_long_never_raises_the_lista_loss(scale, length):
    for seed in range(20):
        d = random(5, 8, seed=seed, scale=0.03 * 3.0 ** (seed % 6))
        c = length * squared_norm(d)
        for far in (0.1, 1.0, 10.0):
            x, z = (
                random(64, 5, seed=100 + seed, scale=scale),
                random(64, 8, seed=200 + seed, scale=far * scale),
            )
            for sparsity in (1e-3, 0.9):
                assert raised(x, z, d, sparsity, c).max().item() <= 1e-12


@pytest.mark.parametrize("tie_layers", [False, True])
@torch.no_grad()
def test_every_layer_keeps_the_promise_wherever_its_dictionary_went(tie_layers, monkeypatch):
    model = model_of(size=16, frames=4, spread=1.0, layers=4, tie_layers=tie_layers)
    start = squared_norm(model_of(spread=0.0).dictionary(0))
    steps: list[tuple[Any, ...]] = []

    def watched(*given: Any) -> torch.Tensor:
        steps.append(given)
        return lista_step(*given)

    monkeypatch.setattr("cudt.models.dust_network.lista_step", watched)
    task = tiny_videos()
    answers(model, task.collate(task.examples("train"))["frames"].double())
    assert len(steps) == 4
    for x, z, shown, d, sparsity, c in steps:
        assert torch.allclose(shown, z @ d.T)
        assert raised(x, z, d, sparsity, c).max().item() <= 1e-12
    # With the c of the start, layers that begin at codes other than 0 would not.
    assert any(
        raised(x, z, d, sparsity, start).max().item() > 0 for x, z, _, d, sparsity, _ in steps
    )


# ---------------------------------------------------------------- the model


def test_tied_layers_share_their_dictionary():
    tied, free = model_of(tie_layers=True), model_of()
    assert tied.dictionary(0) is tied.dictionary(2)
    assert len(list(tied.parameters())) == 1
    assert len(list(free.parameters())) == 3
    assert free.dictionary(0) is not free.dictionary(2)


@pytest.mark.parametrize("tie_layers", [False, True])
def test_every_weight_gets_a_gradient_from_the_last_layer(tie_layers):
    model = model_of(tie_layers=tie_layers)
    answers(model, 255 * random(2, 3, 8, 8).abs())[-1].square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
