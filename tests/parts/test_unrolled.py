"""UT for texts and for video: the equations token by token, and the energies that its steps descend
on (docs/background/energies.md)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cudt.config import tasks as sections
from cudt.config.models import UnrolledVideo as VideoConfig
from cudt.models import unrolled
from cudt.models.patches import from_patches, overcomplete_dct, to_patches
from cudt.models.unrolled import Config, UnrolledTransformer, UnrolledVideo, attention, relu_step
from cudt.tasks import toys
from cudt.utils.errors import UserError
from tests.literal import unrolled_layers
from tests.shapes import batch_of, tiny_videos

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
    model = unrolled.build(config, tiny_videos(size, 3), None).double()
    assert isinstance(model, UnrolledVideo)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data += spread * torch.randn(weight.shape, dtype=torch.double, generator=generator)
    return model


def weights_of(model: UnrolledTransformer | UnrolledVideo) -> list[Any]:
    return [[one.tolist() for one in model.layer_weights(n)] for n in range(model.n_layers)]


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


def test_padding_changes_no_answer_of_a_text():
    model = text_model()
    keys = ("input_ids", "attention_mask")
    wider = {**TEXTS, **{key: nn.functional.pad(TEXTS[key], [0, 3]) for key in keys}}  # type: ignore[arg-type]
    one, other = (answers(model, model.signal(given)[0], given) for given in (TEXTS, wider))
    assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("kind", ["text", "video"])
def test_gradients_equal_finite_differences(kind):
    model: Any = text_model() if kind == "text" else video_model(4, layers=2, patch=2, atoms=3)
    batch: Any = TEXTS if kind == "text" else batch_of(255 * torch.rand(1, 3, 4, 4).double())
    signal = model.signal(batch)[0].detach().double().requires_grad_()

    def of_all(signal: Tensor, *weights: Tensor) -> Tensor:
        half = len(weights) // 2
        model.layer_weights = lambda layer: (weights[layer], weights[half + layer])
        return answers(model, signal, batch)

    assert torch.autograd.gradcheck(of_all, (signal, *model.w1, *model.w2))


@tied
@pytest.mark.parametrize("make", [text_model, video_model])
def test_tied_layers_share_their_weights_and_all_get_gradients_from_the_last(make, tie_layers):
    model = make(tie_layers=tie_layers)
    batch: Any = TEXTS if make is text_model else batch_of(255 * torch.rand(1, 3, 8, 8).double())
    assert len(model.w1) == len(model.w2) == (1 if tie_layers else 3)
    assert (model.layer_weights(0)[0] is model.layer_weights(2)[0]) == tie_layers
    answers(model, model.signal(batch)[0].double(), batch)[-1].square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


@torch.no_grad()
def test_weights_of_video_start_from_the_dictionary_of_cosines():
    model, d = video_model(spread=0.0), overcomplete_dct(4, 5).double()
    norm, identity = torch.linalg.eigvalsh(d @ d.T)[-1].sqrt(), torch.eye(16).double()
    for layer in range(3):
        w1, w2 = model.layer_weights(layer)
        assert torch.allclose(w1, d.T / norm, atol=1e-6)
        assert torch.allclose(0.6 * identity - 0.2 * (w2 + w2.T), identity, atol=1e-6)


def test_tasks_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="model unrolled needs a text task"):
        unrolled.build(Config(name="unrolled"), object(), None)  # type: ignore[arg-type]
    task = toys.reviews(sections.Reviews(name="reviews", train=4, validation=4, test=4), None, None)
    with pytest.raises(UserError, match="this task has its own vocabulary"):
        unrolled.build(Config(name="unrolled", embeddings_from="owner/name"), task, None)
    with pytest.raises(UserError, match="model unrolled_video needs a video task"):
        unrolled.build(VideoConfig(name="unrolled_video"), task, None)


# ---------------------------------------------------------------- the steps and their energies

ALL = torch.ones(8, 7, dtype=torch.bool)
SCALES = [0.01, 0.1, 0.3, 1.0, 3.0, 10.0]


def tokens(scale: float, seed: int, width: int = 5, centred: bool = True) -> Tensor:
    """Random tokens; around a centre other than the origin, steps towards each other can lengthen
    vectors."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(8, 1, width, dtype=torch.double, generator=generator)
    around = scale * torch.randn(8, 7, width, dtype=torch.double, generator=generator)
    return around + (0 if centred else 5 * centre)


def kernel(y: Tensor) -> Tensor:
    return torch.exp(-0.5 * (y.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1))


def pair_energy(y: Tensor) -> Tensor:
    """−Σ_{t<u} exp(−½‖y_t − y_u‖²) of each sequence."""
    return -kernel(y).triu(1).sum((-1, -2))


def attention_energy(y: Tensor) -> Tensor:
    """g₁(Y) = −Σ_{t<u} exp(−½‖y_t − y_u‖²) + ½ Σ_t ‖y_t‖²."""
    return pair_energy(y) + 0.5 * y.square().sum((-1, -2))


def relu_energy(x: Tensor, w2: Tensor) -> Tensor:
    """g₂(X) = ½ Σ_t x_tᵀ W₂ x_t + ½‖X‖² where X has no negative entry."""
    return 0.5 * ((x @ w2.T) * x + x.square()).sum((-1, -2))


def weighted_attention(y: Tensor) -> Tensor:
    """y_t ← Σ_u γ_tu·y_u / Σ_u γ_tu with γ_tu = exp(−½‖y_t − y_u‖²)."""
    return kernel(y) @ y / kernel(y).sum(-1, keepdim=True)


def step_of_the_proof(y: Tensor) -> Tensor:
    """The same without the token itself in the numerator: Y − D⁻¹∇g₁."""
    return (kernel(y) @ y - y) / kernel(y).sum(-1, keepdim=True)


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
    assert torch.autograd.gradcheck(lambda given: attention(given, mask), (y,))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("centred", [True, False])
def test_weighted_attention_lowers_the_pair_energy_and_the_step_of_the_proof_g1(scale, centred):
    for seed in range(20):
        y = tokens(scale, seed, centred=centred)
        assert (pair_energy(weighted_attention(y)) - pair_energy(y)).max().item() <= 1e-9
        raised = attention_energy(step_of_the_proof(y)) - attention_energy(y)
        assert raised.max().item() <= 1e-9


def test_the_steps_are_the_gradient_steps_of_their_energies():
    y = tokens(0.7, 0).requires_grad_()
    (gradient,) = torch.autograd.grad(attention_energy(y).sum(), y)
    step = y - gradient / kernel(y).sum(-1, keepdim=True)
    assert torch.allclose(step_of_the_proof(y), step, atol=1e-9)
    x, w2 = tokens(1.0, 0).abs().requires_grad_(), tokens(1.0, 3)[0, :5]
    (gradient,) = torch.autograd.grad(relu_energy(x, w2).sum(), x)
    assert torch.allclose(relu_step(x, w2, 0.3), torch.relu(x - 0.3 * gradient))


def test_what_theory_does_not_promise_happens():
    # Two tokens far from each other are drawn outwards to a third; it is drawn inwards by both, but
    # only once.
    y = torch.tensor([[[100.0, 0.0], [99.0, 1.5], [99.0, -1.5]]], dtype=torch.double)
    after = weighted_attention(y)
    assert (attention_energy(after) - attention_energy(y)).item() > 1
    assert pair_energy(after).item() < pair_energy(y).item()
    assert attention_energy(step_of_the_proof(y)).item() < attention_energy(y).item()
    # The attention of the models, without weights, raises both energies of some sequences.
    for energy in (pair_energy, attention_energy):
        random = [tokens(1.0, seed) for seed in range(50)]
        raised = [(energy(attention(y, ALL) @ y) - energy(y)).max().item() for y in random]
        assert max(raised) > 1e-3


def test_a_relu_step_up_to_its_bound_never_raises_its_energy_and_far_above_it_does():
    for seed in range(20):
        w2, x = tokens(1.0, seed + 100)[0, :5], tokens(1.0, seed).abs()
        largest = torch.linalg.eigvalsh(torch.eye(5) + 0.5 * (w2 + w2.T))[-1].item()
        bound = min(2 / largest, 10.0) if largest > 0 else 10.0
        for share in (0.1, 0.5, 0.999):
            raised = relu_energy(relu_step(x, w2, share * bound), w2) - relu_energy(x, w2)
            assert raised.max().item() <= 1e-9
    w2 = 3 * torch.eye(5, dtype=torch.double)
    # A long step overshoots along this direction; minus signs would be cut off by the ReLU.
    w2[0, 1] = w2[1, 0] = -3.5
    x, bound = tokens(1.0, 0).abs(), 2 / (1 + 3 + 3.5)
    assert (relu_energy(relu_step(x, w2, 3 * bound), w2) - relu_energy(x, w2)).max().item() > 0
    assert math.isfinite(bound)
