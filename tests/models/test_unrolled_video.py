from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cudt.models import unrolled_video
from cudt.models.patches import overcomplete_dct
from cudt.models.unrolled_video import Config
from cudt.models.unrolled_video_network import UnrolledVideo
from tests.shapes import batch_of, tiny_videos


def model_of(size: int = 8, frames: int = 3, spread: float = 0.2, **changes: Any) -> UnrolledVideo:
    """A UT whose weights have left their start, each in its own direction."""
    config = Config(
        **{
            "name": "unrolled_video",
            "layers": 3,
            "patch": 4,
            "atoms": 5,
            "step_size": 0.4,
            **changes,
        }
    )
    model = unrolled_video.build(config, tiny_videos(size, frames), None).double()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data += spread * torch.randn(weight.shape, dtype=torch.double, generator=generator)
    return model


def random_videos(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.rand(shape, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def answers(model: UnrolledVideo, signal: torch.Tensor) -> torch.Tensor:
    batch = batch_of(signal)
    return torch.stack([model.readout(state, batch) for state in model.layer_states(signal, batch)])


def literal_layers(model: UnrolledVideo, x: list[Any]) -> list[Any]:
    """The equations token by token on one sequence of patches, on lists of numbers."""

    def times(matrix: list[list[float]], vector: list[float]) -> list[float]:
        return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]

    layers = []
    for layer in range(model.n_layers):
        w1, w2 = (weight.tolist() for weight in model.layer_weights(layer))
        eta, n = model.layer.step_size, len(w2)
        w_s = [
            [(1 - eta) * (i == j) - eta / 2 * (w2[i][j] + w2[j][i]) for j in range(n)]
            for i in range(n)
        ]
        y = [times(w1, token) for token in x]
        z = []
        for t in range(len(x)):
            logits = [sum(a * b for a, b in zip(y[t], y[u], strict=True)) for u in range(len(x))]
            weights = [math.exp(logit - max(logits)) for logit in logits]
            z.append(
                [sum(w * x[u][i] for u, w in enumerate(weights)) / sum(weights) for i in range(n)]
            )
        x = [[max(0.0, value) for value in times(w_s, token)] for token in z]
        layers.append(x)
    return layers


def literal_frames(model: UnrolledVideo, video: torch.Tensor) -> torch.Tensor:
    """What each layer makes of one video, patch position by patch position."""
    made = torch.zeros(model.n_layers, *video.shape, dtype=torch.double)
    side = model.patch
    for top in range(0, video.shape[1], side):
        for left in range(0, video.shape[2], side):
            place = (slice(None), slice(top, top + side), slice(left, left + side))
            x = [(frame / 255).flatten().tolist() for frame in video[place]]
            for layer, patches in enumerate(literal_layers(model, x)):
                made[layer][place] = 255 * torch.tensor(patches, dtype=torch.double).view(
                    -1, side, side
                )
    return made


@pytest.mark.parametrize("tie_layers", [False, True])
@pytest.mark.parametrize("scale", [1.0, 255.0])
@torch.no_grad()
def test_batched_layers_equal_the_equations_token_by_token(tie_layers, scale):
    model = model_of(tie_layers=tie_layers)
    videos = random_videos(2, 3, 8, 8, scale=scale)
    expected = torch.stack([literal_frames(model, video) for video in videos], dim=1)
    assert model.n_layers == len(expected) == 3
    assert expected.amax((1, 2, 3, 4)).min() > 0.1 * scale
    assert torch.allclose(answers(model, videos), expected, rtol=1e-9, atol=1e-9 * scale)
    single = answers(model.float(), videos.float())
    assert torch.allclose(single.double(), expected, rtol=1e-5, atol=1e-5 * scale)


def test_gradients_equal_finite_differences():
    model = model_of(size=4, frames=2, patch=2, atoms=3, layers=2)
    signal = random_videos(1, 2, 4, 4, scale=255.0).requires_grad_()

    def of_all(video: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        model.layer_weights = lambda layer: (weights[layer], weights[2 + layer])  # type: ignore[method-assign]
        return answers(model, video)

    assert torch.autograd.gradcheck(of_all, (signal, *model.w1, *model.w2))


@torch.no_grad()
def test_weights_start_from_the_dictionary_of_cosines():
    model = model_of(spread=0.0)
    d = overcomplete_dct(4, 5).double()
    norm = torch.linalg.eigvalsh(d @ d.T)[-1].sqrt()
    for layer in range(3):
        w1, w2 = model.layer_weights(layer)
        assert torch.allclose(w1, d.T / norm, atol=1e-6)
        assert torch.allclose(
            0.6 * torch.eye(16) - 0.2 * (w2 + w2.T), torch.eye(16, dtype=torch.double), atol=1e-6
        )


def test_tied_layers_share_their_weights():
    tied, free = model_of(tie_layers=True), model_of()
    assert tied.layer_weights(0)[0] is tied.layer_weights(2)[0]
    assert tied.layer_weights(0)[1] is tied.layer_weights(2)[1]
    assert len(list(tied.parameters())) == 2
    assert len(list(free.parameters())) == 6


@pytest.mark.parametrize("tie_layers", [False, True])
def test_every_weight_gets_a_gradient_from_the_last_layer(tie_layers):
    model = model_of(tie_layers=tie_layers)
    answers(model, random_videos(2, 3, 8, 8))[-1].square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
