"""DUST: patches, cosines, the equations token by token, and the LISTA loss that a step descends on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from cudt.models import dust
from cudt.models.dust import Config, Dust, lista_step, squared_norm
from cudt.models.patches import from_patches, overcomplete_dct, to_patches
from tests.literal import dust_layers
from tests.videos import batch_of, tiny_videos

tied = pytest.mark.parametrize("tie_layers", [False, True])


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, dtype=torch.double, generator=generator)


def model_of(size: int = 8, frames: int = 3, spread: float = 0.2, **changes: Any) -> Dust:
    """A DUST whose dictionaries have left their start, each in its own direction."""
    config = Config(**{"name": "dust", "layers": 3, "patch": 4, "atoms": 5, **changes})
    model = dust.build(config, tiny_videos(size, frames), None).double()
    for number, dictionary in enumerate(model.dictionaries):
        dictionary.data += random(*dictionary.shape, seed=number, scale=spread)
    return model


def answers(model: Dust, signal: Tensor) -> Tensor:
    batch = batch_of(signal)
    return torch.stack([model.readout(state, batch) for state in model.layer_states(signal, batch)])


def test_a_sequence_is_one_patch_position_over_the_frames_and_comes_back():
    frames = torch.randint(0, 256, (2, 5, 8, 12)).float()
    patches = to_patches(frames, 4)
    assert torch.equal(from_patches(patches, 4, 8, 12), frames)
    corners = [(n, top, left) for n in range(2) for top in (0, 4) for left in (0, 4, 8)]
    for sequence, (n, top, left) in zip(patches, corners, strict=True):
        cut = frames[n, :, top : top + 4, left : left + 4]
        assert torch.equal(sequence, cut.flatten(1))


@pytest.mark.parametrize(("side", "atoms"), [(2, 5), (5, 7), (16, 24)])
def test_atoms_are_products_of_cosines_without_their_mean_of_norm_1(side, atoms):
    def cosine(k: int) -> list[float]:
        values = [math.cos(math.pi * i * k / atoms) for i in range(side)]
        mean = sum(values) / side if k else 0.0
        norm = math.sqrt(sum((value - mean) ** 2 for value in values))
        return [(value - mean) / norm for value in values]

    dictionary = overcomplete_dct(side, atoms)
    for down, across in [(0, 0), (0, 1), (1, 0), (atoms - 1, atoms - 1)]:
        expected = [a * b for a in cosine(down) for b in cosine(across)]
        assert dictionary[:, down * atoms + across].tolist() == pytest.approx(expected, abs=1e-6)
    assert torch.linalg.matrix_rank(dictionary) == side**2


@tied
@pytest.mark.parametrize(("scale", "sparsity"), [(1.0, 0.05), (255.0, 0.9)])
@torch.no_grad()
def test_batched_layers_equal_the_equations_token_by_token(tie_layers, scale, sparsity):
    keys: dict[str, Any] = {"sparsity": sparsity, "attention_unit": scale}
    model = model_of(tie_layers=tie_layers, correlation=0.5, **keys)
    videos = scale * torch.rand(2, 3, 8, 8, dtype=torch.double)
    dictionaries = [model.dictionaries[0 if tie_layers else layer] for layer in range(3)]
    norms = [torch.linalg.matrix_norm(d, 2).item() ** 2 for d in dictionaries]
    made = [
        dust_layers([d.tolist() for d in dictionaries], sparsity, 0.5, scale, norms, one.tolist())
        for one in to_patches(videos, 4)
    ]
    found, single = answers(model, videos), answers(model.float(), videos.float())
    for layer in range(3):
        patches = torch.tensor([one[layer] for one in made], dtype=torch.double)
        expected = from_patches(patches, 4, 8, 8)
        assert expected.abs().max() > 0.1 * scale
        assert torch.allclose(found[layer], expected, rtol=1e-9, atol=1e-9 * scale)
        assert torch.allclose(single[layer].double(), expected, rtol=1e-5, atol=1e-5 * scale)


def test_gradients_equal_finite_differences_also_through_the_norm_of_the_dictionary():
    model = model_of(size=4, frames=2, patch=2, atoms=3, layers=2, sparsity=0.05)
    signal, start = random(1, 2, 4, 4, seed=3).requires_grad_(), [*model.dictionaries]

    def of_all(video: Tensor, *dictionaries: Tensor) -> Tensor:
        model._modules["dictionaries"] = dictionaries  # type: ignore[assignment]
        return answers(model, video)

    assert torch.autograd.gradcheck(of_all, (signal, *start))


def lista_loss(x: Tensor, h: Tensor, dictionary: Tensor, sparsity: float) -> Tensor:
    """½‖x_t − D h_t‖² + λ₁‖h_t‖₁ for each token."""
    return 0.5 * (x - h @ dictionary.T).square().sum(-1) + sparsity * h.abs().sum(-1)


def test_a_step_is_a_proximal_gradient_step_on_the_lista_loss():
    x, z, d = random(9, 4, seed=0), random(9, 6, seed=1).requires_grad_(), random(4, 6, seed=2)
    (gradient,) = torch.autograd.grad(lista_loss(x, z, d, 0.0).sum(), z)
    c = 1.3 * squared_norm(d)
    expected = F.softshrink(z - gradient / c, 0.7 / c.item())
    assert torch.allclose(lista_step(x, z, z @ d.T, d, 0.7, c), expected, atol=1e-12)
