"""UT for texts and for video: the equations token by token, and the energies that its steps descend on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cudt.config.models import UnrolledVideo as VideoConfig
from cudt.models import unrolled
from cudt.models.patches import from_patches, overcomplete_dct, to_patches
from cudt.models.unrolled import Config, UnrolledTransformer, UnrolledVideo, attention, relu_step
from tests.literal import unrolled_layers
from tests.videos import batch_of, tiny_videos

tied = pytest.mark.parametrize("tie_layers", [False, True])
ROWS = [[3, 4, 5, 6], [7, 8], [9, 10, 1]]
IDS = torch.tensor([row + [0] * (4 - len(row)) for row in ROWS])
TEXTS = {"ids": ["a", "b", "c"], "input_ids": IDS, "attention_mask": (IDS > 0).long()}


def text_model(**changes: Any) -> UnrolledTransformer:
    torch.manual_seed(0)
    config = Config(name="unrolled", layers=3, width=6, attention_width=4, **changes)
    return UnrolledTransformer(config, nn.Embedding(11, 6), max_length=8, n_classes=2).double()


def video_model(size: int = 8, spread: float = 0.2, **changes: Any) -> UnrolledVideo:
    """A UT whose weights have left their start, each in its own direction."""
    sizes = {"layers": 3, "patch": 4, "atoms": 5, "step_size": 0.4, **changes}
    config = VideoConfig(name="unrolled_video", **sizes)
    model = unrolled.video(config, tiny_videos(size, 3), None).double()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data += spread * torch.randn(weight.shape, dtype=torch.double, generator=generator)
    return model


def weights_of(model: UnrolledTransformer | UnrolledVideo) -> list[Any]:
    pairs = [*zip(model.w1, model.w2, strict=True)]
    return [[one.tolist() for one in pairs[n % len(pairs)]] for n in range(model.n_layers)]


def answers(model: Any, signal: Tensor, batch: Any) -> Tensor:
    return torch.stack([model.readout(state, batch) for state in model.layer_states(signal, batch)])


@tied
@torch.no_grad()
def test_layers_of_texts_equal_the_equations_token_by_token(tie_layers):
    model = text_model(tie_layers=tie_layers)
    states = model.layer_states(model.signal(TEXTS)[0], TEXTS)
    for row, words in enumerate(ROWS):
        x = (model.words.weight[words] + model.positions.weight[: len(words)]).tolist()
        literal = unrolled_layers(weights_of(model), model.layer.step_size, x)
        for state, expected in zip(states, literal, strict=True):
            found = state[row, : len(words)]
            assert torch.allclose(found, torch.tensor(expected).double(), atol=1e-6)
            pooled = torch.tensor(expected, dtype=torch.double).mean(0)
            answer = model.readout(state, TEXTS)[row]
            assert torch.allclose(answer, model.head(pooled), atol=1e-10)


@tied
@torch.no_grad()
def test_layers_of_videos_equal_the_equations_at_every_patch(tie_layers):
    model = video_model(tie_layers=tie_layers)
    videos = 255 * torch.rand(2, 3, 8, 8, dtype=torch.double)
    sequences = to_patches(videos, 4)
    step_size, made = model.layer.step_size, []
    for sequence in sequences:
        made.append(unrolled_layers(weights_of(model), step_size, (sequence / 255).tolist()))
    found = answers(model, videos, batch_of(videos))
    for layer in range(3):
        patches = 255 * torch.tensor([one[layer] for one in made], dtype=torch.double)
        assert torch.allclose(found[layer], from_patches(patches, 4, 8, 8), atol=1e-9 * 255)


@pytest.mark.parametrize("kind", ["text", "video"])
def test_gradients_equal_finite_differences(kind):
    model: Any = text_model() if kind == "text" else video_model(4, layers=2, patch=2, atoms=3)
    batch: Any = TEXTS if kind == "text" else batch_of(255 * torch.rand(1, 3, 4, 4).double())
    signal = model.signal(batch)[0].detach().double().requires_grad_()

    def of_all(signal: Tensor, *weights: Tensor) -> Tensor:
        half = len(weights) // 2
        model._modules |= {"w1": weights[:half], "w2": weights[half:]}
        return answers(model, signal, batch)

    assert torch.autograd.gradcheck(of_all, (signal, *model.w1, *model.w2))


@torch.no_grad()
def test_weights_of_video_start_from_the_dictionary_of_cosines():
    model, d = video_model(spread=0.0), overcomplete_dct(4, 5).double()
    norm, identity = torch.linalg.eigvalsh(d @ d.T)[-1].sqrt(), torch.eye(16).double()
    for layer in range(3):
        w1, w2 = model.w1[layer], model.w2[layer]
        assert torch.allclose(w1, d.T / norm, atol=1e-6)
        assert torch.allclose(0.6 * identity - 0.2 * (w2 + w2.T), identity, atol=1e-6)


ALL = torch.ones(8, 7, dtype=torch.bool)


def tokens(scale: float, seed: int, width: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(8, 7, width, dtype=torch.double, generator=generator)


@pytest.mark.parametrize("padded", [False, True])
def test_attention_and_its_gradient_are_those_of_the_plain_formula(padded):
    y, mask = tokens(0.7, 0).requires_grad_(), ALL.clone()
    mask[::2, 5:] = not padded
    plain = (y @ y.mT).masked_fill(~mask.unsqueeze(-2), -torch.inf).softmax(-1)
    ours = attention(y, mask if padded else None)
    weights = tokens(1.0, 1, width=7)
    (expected,), (found,) = (torch.autograd.grad((weights * one).sum(), y) for one in (plain, ours))
    assert torch.allclose(ours, plain, atol=1e-14)
    assert torch.allclose(found, expected, atol=1e-13)


def test_a_relu_step_is_a_proximal_gradient_step_on_its_energy():
    x, w2 = tokens(1.0, 0).abs().requires_grad_(), tokens(1.0, 3)[0, :5]
    # g₂(X) = ½ Σ_t x_tᵀ W₂ x_t + ½‖X‖² where X has no negative entry.
    energy = 0.5 * ((x @ w2.T) * x + x.square()).sum()
    (gradient,) = torch.autograd.grad(energy, x)
    assert torch.allclose(relu_step(x, w2, 0.3), torch.relu(x - 0.3 * gradient))
