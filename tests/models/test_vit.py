from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoModel, BertConfig, ViTConfig, ViTMAEConfig, YolosConfig

from cudt.data import hub
from cudt.models import vit
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.vit import Config
from cudt.models.vit_network import ViT
from cudt.utils.errors import UserError
from tests.pretrained import IMAGE_CONFIGS, SMALL_IMAGES, save_processor, save_random, tiny_vision
from tests.shapes import batch_of, tiny_videos

FAMILIES = list(IMAGE_CONFIGS)
EXTRA_TOKENS = {"vit": 1, "deit": 2, "beit": 1, "dinov2": 1, "dinov2-registers": 3, "dinov3": 3}
OTHER_SIZE = {"size": {"height": 24, "width": 32}}
PROCESSORS: dict[str, dict[str, Any]] = {
    "its own": {},
    "other means": {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "no mean": {"do_normalize": False},
    "another scale": {"rescale_factor": 1 / 128},
    "no scale": {
        "do_rescale": False,
        "image_mean": [120.0, 110.0, 100.0],
        "image_std": [60.0, 50.0, 40.0],
    },
    "another size": OTHER_SIZE,
    "a smaller size": {"size": {"height": 8, "width": 12}},
    "another size, bicubic": {**OTHER_SIZE, "resample": 3},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pretrained")
    return {family: tiny_vision(root / family, family) for family in FAMILIES}


def build(folder: str, size: int = 16) -> ViT:
    return vit.build(Config(name="vit", pretrained=folder), tiny_videos(size), None).eval()


def with_processor(folder: Path, settings: dict[str, Any]) -> ViT:
    """A ViT for the size that its processor makes."""
    image_size = [*settings.get("size", {"height": 16, "width": 16}).values()]
    return build(tiny_vision(folder, processor=settings, image_size=image_size))


def noisy_frames(examples: int = 2, length: int = 3, size: int = 16) -> torch.Tensor:
    """Some of them below 0 or above 255, as noise makes them."""
    return 128 + 90 * torch.randn(
        examples, length, size, size, generator=torch.Generator().manual_seed(0)
    )


# ---------------------------------------------------------------- layers


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_layer_states_are_those_that_the_library_lists_and_the_last_is_what_its_norm_gets(
    folders, family
):
    model, batch = build(folders[family]), batch_of(noisy_frames())
    plain = AutoModel.from_pretrained(folders[family]).eval()
    expected = plain(pixel_values=model.process(batch["frames"]), output_hidden_states=True)
    states = model.layer_states(batch["frames"], batch)
    assert model.n_layers == len(states) == len(expected.hidden_states) - 1 == 3
    for state, listed in zip(states[:-1], expected.hidden_states[1:-1], strict=True):
        assert torch.allclose(state, listed, atol=1e-6)
    norm = plain.norm if family == "dinov3" else plain.layernorm
    assert torch.allclose(norm(states[-1]), expected.last_hidden_state, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_number_of_layers_is_read_off_the_model(tmp_path, depth):
    model = build(tiny_vision(tmp_path, num_hidden_layers=depth))
    assert (
        model.n_layers == len(model.layer_states(noisy_frames(), batch_of(noisy_frames()))) == depth
    )


@torch.no_grad()
def test_frames_are_looked_at_one_by_one(folders):
    model, frames = build(folders["vit"]), noisy_frames()
    together = [
        model.readout(state, batch_of(frames))
        for state in model.layer_states(frames, batch_of(frames))
    ]
    for t in range(3):
        batch = batch_of(frames[:, t : t + 1])
        for answer, state in zip(together, model.layer_states(batch["frames"], batch), strict=True):
            assert torch.allclose(model.readout(state, batch), answer[:, t : t + 1], atol=1e-2)


@pytest.mark.parametrize("layers", [None, [3]])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_that_is_trained_is_left_without_a_gradient(folders, family, layers):
    """Processes that train together wait for the gradients of all weights."""
    task = tiny_videos()
    layerwise = LayerwiseLosses(build(folders[family]), task).train()
    losses = layerwise(task.collate(task.examples("train")), layers=layers)
    losses.mean().backward()
    frozen = {
        name.removeprefix("model.encoder.")
        for name, weight in layerwise.named_parameters()
        if not weight.requires_grad
    }
    assert [
        name
        for name, weight in layerwise.named_parameters()
        if weight.requires_grad and weight.grad is None
    ] == []
    assert {name for name in frozen if ".layer" in f".{name}" and "layernorm" not in name} == set()
    assert {name.split(".")[0] for name in frozen} <= {"layernorm", "norm", "pooler", "embeddings"}
    assert {name for name in frozen if name.startswith("embeddings")} <= {"embeddings.mask_token"}


# ---------------------------------------------------------------- pixels


@pytest.mark.parametrize("settings", PROCESSORS.values(), ids=PROCESSORS)
def test_noisy_frames_become_what_torchvision_makes_of_them(tmp_path, settings):
    model, frames = with_processor(tmp_path, settings), noisy_frames()
    pictures = [frame.expand(3, -1, -1) for frame in frames.flatten(0, 1)]
    processor = hub.load_image_processor(str(tmp_path), None)
    expected = processor(images=pictures, return_tensors="pt")["pixel_values"]
    assert model.process(frames).shape == expected.shape
    assert torch.allclose(model.process(frames), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", PROCESSORS.values(), ids=PROCESSORS)
def test_the_way_back_ends_where_it_began(tmp_path, settings):
    model = with_processor(tmp_path, settings)
    frames = noisy_frames()
    if "size" in settings:
        # What is resized twice keeps its slow changes alone.
        ramp = torch.linspace(0, 255, 16)
        frames = (0.5 * ramp + 0.5 * ramp.unsqueeze(1)).expand(2, 3, 16, 16)
    returned = model.unprocess(model.process(frames), 3)
    assert returned.shape == frames.shape
    assert (returned - frames).abs().max().item() < (10 if "size" in settings else 1e-3)


def test_channels_are_averaged(tmp_path):
    model = with_processor(tmp_path, PROCESSORS["other means"])
    pictures = model.process(torch.full((1, 1, 16, 16), 100.0))
    pictures[:, 0] += 0.3
    assert torch.allclose(model.unprocess(pictures, 1), torch.tensor(100 + 0.3 * 0.229 * 255 / 3))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_that_hold_the_pixels_of_their_patches_are_read_as_the_frames(tmp_path, family):
    """In the order of the patch embedding's kernel, behind class and other tokens."""
    settings = PROCESSORS["other means"]
    model = build(tiny_vision(tmp_path, family, processor=settings))
    frames = noisy_frames()
    patches = F.unfold(model.process(frames), kernel_size=4, stride=4).mT
    others = torch.randn(len(patches), EXTRA_TOKENS[family], 48)
    batch = batch_of(frames)
    answer = model.readout(torch.cat([others, patches], dim=1), batch)
    assert torch.allclose(answer, frames, atol=1e-2)
    assert model.layer_states(frames, batch)[0].shape == (6, EXTRA_TOKENS[family] + 16, 48)
    # An error of 0.1 in every normalised number is one of the metric on the scale of 0 to 255.
    away = model.readout(torch.cat([others, patches + 0.1], dim=1), batch)
    deviation = sum(settings["image_std"]) / 3
    assert tiny_videos().scores(away, batch).mean().sqrt().item() == pytest.approx(
        0.1 * deviation * 255, rel=1e-3
    )


@torch.no_grad()
def test_a_border_that_the_processor_would_cut_off_stays(tmp_path):
    cut = {
        "size": {"height": 20, "width": 20},
        "do_center_crop": True,
        "crop_size": {"height": 16, "width": 16},
    }
    model, frames = (
        build(tiny_vision(tmp_path / "cut", "deit", processor=cut), size=24),
        noisy_frames(size=24),
    )
    whole = build(tiny_vision(tmp_path / "whole", "deit"), size=24)
    assert torch.equal(model.process(frames), whole.process(frames))


# ---------------------------------------------------------------- what is refused

SHORT_BERT = BertConfig(
    **{"vocab_size": 20, **{key: SMALL_IMAGES[key] for key in list(SMALL_IMAGES)[:4]}}
)
REFUSED: dict[str, tuple[Any, dict[str, Any] | None, str]] = {
    "a text encoder with an image processor": (
        SHORT_BERT,
        {},
        "BertModel does not split images into square patches",
    ),
    "another size": (
        IMAGE_CONFIGS["vit"],
        {"size": {"height": 32, "width": 32}},
        "ViTModel cannot be used as a model of im",
    ),
    "no size": (
        IMAGE_CONFIGS["vit"],
        {"do_resize": False},
        "does not define an output height and width",
    ),
    "another way to resize": (
        IMAGE_CONFIGS["vit"],
        {"resample": 1},
        "must resize by bilinear or bicubic interpolation",
    ),
    "one channel": (
        ViTConfig(**SMALL_IMAGES, num_channels=1),
        {},
        "ViTModel cannot be used as a model of images",
    ),
    "masked patches": (
        ViTMAEConfig(**SMALL_IMAGES),
        {},
        "the last tokens of ViTMAEModel are not its patches",
    ),
    "tokens behind the patches": (
        YolosConfig(**{**SMALL_IMAGES, "image_size": [16, 16]}),
        {},
        "the last tokens of YolosModel are not its patches",
    ),
}


@pytest.mark.parametrize(("config", "processor", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_as_pixels_is_refused_in_a_line(tmp_path, config, processor, reason):
    save_random(tmp_path, config)
    if processor is not None:
        save_processor(tmp_path, **processor)
    with pytest.raises(UserError, match=reason) as error:
        build(str(tmp_path))
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- the linear readout

NARROW: dict[str, Any] = {"hidden_size": 32}


def build_linear(folder: str, size: int = 16) -> ViT:
    return vit.build(
        Config(name="vit", pretrained=folder, readout="linear"), tiny_videos(size), None
    ).eval()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_linear_readout_reads_tokens_of_another_width(tmp_path, family):
    """The oracle writes one pixel after the other, from what the library itself returns."""
    model = build_linear(tiny_vision(tmp_path, family, **NARROW))
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight)
    torch.nn.init.normal_(model.head.bias)
    frames = noisy_frames(1, 2)
    plain = AutoModel.from_pretrained(tmp_path).eval()
    closed = plain(pixel_values=model.process(frames)).last_hidden_state
    answer = model.readout(model.layer_states(frames, batch_of(frames))[-1], batch_of(frames))
    assert answer.shape == frames.shape
    for t, row, column in [(0, 0, 0), (0, 3, 14), (1, 9, 6), (1, 15, 15)]:
        token = closed[t, EXTRA_TOKENS[family] + 4 * (row // 4) + column // 4]
        number = 4 * (row % 4) + column % 4
        normalised = token @ model.head.weight[number] + model.head.bias[number]
        # ViT's processor maps x to (x/255 − 0.5)/0.5.
        assert answer[0, t, row, column].item() == pytest.approx(
            (0.5 * normalised.item() + 0.5) * 255, rel=1e-3
        )


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_final_norm_is_applied_once_to_every_layer(tmp_path, family):
    model, frames = build_linear(tiny_vision(tmp_path, family, **NARROW)), noisy_frames()
    plain = AutoModel.from_pretrained(tmp_path).eval()
    norm = plain.norm if family == "dinov3" else plain.layernorm
    for state in model.layer_states(frames, batch_of(frames)):
        assert torch.equal(model.normed(state), norm(state))


@pytest.mark.parametrize(
    "settings", [{}, PROCESSORS["other means"], PROCESSORS["no scale"]], ids=str
)
@torch.no_grad()
def test_every_layer_starts_with_the_mean_grey_of_the_image_processor(tmp_path, settings):
    model, frames = (
        build_linear(tiny_vision(tmp_path, "dinov2", processor=settings, **NARROW)),
        noisy_frames(),
    )
    means = settings.get("image_mean", [0.5] * 3)
    grey = sum(means) / 3 * (1 if "do_rescale" in settings else 255)
    for state in model.layer_states(frames, batch_of(frames)):
        assert torch.allclose(model.readout(state, batch_of(frames)), torch.tensor(grey))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_linear_readout_and_the_norm_before_it_are_trained(tmp_path, family):
    task = tiny_videos()
    layerwise = LayerwiseLosses(build_linear(tiny_vision(tmp_path, family, **NARROW)), task).train()
    # At 0 no gradient passes through it.
    torch.nn.init.normal_(layerwise.model.get_parameter("head.weight"))
    layerwise(task.collate(task.examples("train"))).mean().backward()
    gradients = {
        name: weight.grad for name, weight in layerwise.named_parameters() if weight.requires_grad
    }
    # BEiT's only norm behind its layers belongs to its pooler.
    norm = {"dinov3": ["norm.weight"], "beit": []}.get(family, ["layernorm.weight"])
    assert {
        "model.head.weight",
        "model.head.bias",
        *(f"model.encoder.{name}" for name in norm),
    } <= gradients.keys()
    assert all(gradient is not None for gradient in gradients.values())
