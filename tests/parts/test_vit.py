"""Vision transformers that denoise video: frames as their processor makes them, tokens as pixels,
both readouts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import AutoModel, BertConfig, ViTConfig, ViTMAEConfig, YolosConfig

from cudt.data import hub
from cudt.models import vit
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.vit import Config, ViT
from cudt.utils.errors import UserError
from tests.pretrained import IMAGE_CONFIGS, SMALL_IMAGES, save_processor, save_random, tiny_vision
from tests.shapes import batch_of, tiny_videos

EXTRA_TOKENS = {"vit": 1, "deit": 2, "beit": 1, "dinov2": 1, "dinov2-registers": 3, "dinov3": 3}
OTHER_SIZE = {"size": {"height": 24, "width": 32}}
OTHER_MEANS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSORS: dict[str, dict[str, Any]] = {
    "its own": {},
    "other means": OTHER_MEANS,
    "no mean": {"do_normalize": False},
    "no scale": {"do_rescale": False, "image_mean": [120.0] * 3, "image_std": [60.0, 50.0, 40.0]},
    "another scale": {"rescale_factor": 1 / 128},
    "another size": OTHER_SIZE,
    "a smaller size": {"size": {"height": 8, "width": 12}},
    "another size, bicubic": {**OTHER_SIZE, "resample": 3},
}
processed = pytest.mark.parametrize("settings", PROCESSORS.values(), ids=PROCESSORS)
families = pytest.mark.parametrize("family", IMAGE_CONFIGS)


def build(folder: str, readout: Any = "direct", size: int = 16) -> ViT:
    config = Config(name="vit", pretrained=folder, readout=readout)
    return vit.build(config, tiny_videos(size), None).eval()


def with_processor(folder: Path, settings: dict[str, Any]) -> ViT:
    """A ViT for the size that its processor makes."""
    image_size = [*settings.get("size", {"height": 16, "width": 16}).values()]
    return build(tiny_vision(folder, processor=settings, image_size=image_size))


def noisy_frames(examples: int = 2, length: int = 3, size: int = 16) -> Tensor:
    """Some of them below 0 or above 255, as noise makes them."""
    generator = torch.Generator().manual_seed(0)
    return 128 + 90 * torch.randn(examples, length, size, size, generator=generator)


def states_of(model: ViT, frames: Tensor) -> list[Tensor]:
    return model.layer_states(frames, batch_of(frames))


# ---------------------------------------------------------------- pixels


@processed
def test_noisy_frames_become_what_the_processor_makes_of_them_and_come_back(tmp_path, settings):
    model, frames = with_processor(tmp_path, settings), noisy_frames()
    pictures = [frame.expand(3, -1, -1) for frame in frames.flatten(0, 1)]
    processor = hub.load_image_processor(str(tmp_path), None)
    expected = processor(images=pictures, return_tensors="pt")["pixel_values"]
    assert model.process(frames).shape == expected.shape
    assert torch.allclose(model.process(frames), expected, rtol=1e-4, atol=1e-4)
    if "size" in settings:
        # What is resized twice keeps its slow changes alone.
        ramp = torch.linspace(0, 255, 16)
        frames = (0.5 * ramp + 0.5 * ramp.unsqueeze(1)).expand(2, 3, 16, 16)
    returned = model.unprocess(model.process(frames), 3)
    assert (returned - frames).abs().max().item() < (10 if "size" in settings else 1e-3)


def test_channels_are_averaged_and_nothing_is_cropped(tmp_path):
    model = with_processor(tmp_path / "means", OTHER_MEANS)
    pictures = model.process(torch.full((1, 1, 16, 16), 100.0))
    pictures[:, 0] += 0.3
    assert torch.allclose(model.unprocess(pictures, 1), torch.tensor(100 + 0.3 * 0.229 * 255 / 3))
    crop = {"do_center_crop": True, "crop_size": {"height": 16, "width": 16}}
    cut = tiny_vision(
        tmp_path / "cut", "deit", processor={**crop, "size": {"height": 20, "width": 20}}
    )
    whole, frames = tiny_vision(tmp_path / "whole", "deit"), noisy_frames(size=24)
    one, other = (build(folder, size=24).process(frames) for folder in (cut, whole))
    assert torch.equal(one, other)


@families
def test_tokens_that_hold_the_pixels_of_their_patches_are_read_as_the_frames(tmp_path, family):
    """In the order of the patch embedding's kernel, behind class and other tokens."""
    model = build(tiny_vision(tmp_path, family, processor=OTHER_MEANS))
    frames = noisy_frames()
    patches = F.unfold(model.process(frames), kernel_size=4, stride=4).mT
    others = torch.randn(len(patches), EXTRA_TOKENS[family], 48)
    answer = model.readout(torch.cat([others, patches], dim=1), batch_of(frames))
    assert torch.allclose(answer, frames, atol=1e-2)
    assert states_of(model, frames)[0].shape == (6, EXTRA_TOKENS[family] + 16, 48)


@torch.no_grad()
def test_frames_are_looked_at_one_by_one(tmp_path):
    model, frames = build(tiny_vision(tmp_path)), noisy_frames()
    together = [model.readout(state, batch_of(frames)) for state in states_of(model, frames)]
    for t in range(3):
        alone = frames[:, t : t + 1]
        for answer, state in zip(together, states_of(model, alone), strict=True):
            read = model.readout(state, batch_of(alone))
            assert torch.allclose(read, answer[:, t : t + 1], atol=1e-2)


# ---------------------------------------------------------------- the linear readout


@families
@torch.no_grad()
def test_a_linear_readout_reads_normed_tokens_of_another_width(tmp_path, family):
    """The oracle writes one pixel after the other, from what the library itself returns."""
    model, frames = build(tiny_vision(tmp_path, family, hidden_size=32), "linear"), noisy_frames()
    assert model.head is not None
    for state in states_of(model, frames):
        # It starts with the mean grey of the image processor.
        assert torch.allclose(model.readout(state, batch_of(frames)), torch.tensor(127.5))
    torch.nn.init.normal_(model.head.weight)
    torch.nn.init.normal_(model.head.bias)
    plain = AutoModel.from_pretrained(tmp_path).eval()
    norm = plain.norm if family == "dinov3" else plain.layernorm
    closed = plain(pixel_values=model.process(frames)).last_hidden_state.unflatten(0, (2, 3))
    assert all(torch.equal(model.normed(one), norm(one)) for one in states_of(model, frames))
    answer = model.readout(states_of(model, frames)[-1], batch_of(frames))
    for t, row, column in [(0, 0, 0), (0, 3, 14), (1, 9, 6), (1, 15, 15)]:
        token = closed[0, t, EXTRA_TOKENS[family] + 4 * (row // 4) + column // 4]
        number = 4 * (row % 4) + column % 4
        normalised = token @ model.head.weight[number] + model.head.bias[number]
        # ViT's processor maps x to (x/255 − 0.5)/0.5.
        expected = (0.5 * normalised.item() + 0.5) * 255
        assert answer[0, t, row, column].item() == pytest.approx(expected, rel=1e-3)


@families
@pytest.mark.parametrize("readout", ["direct", "linear"])
def test_no_weight_that_is_trained_is_left_without_a_gradient(tmp_path, family, readout):
    """Processes that train together wait for the gradients of all weights."""
    task, model = tiny_videos(), build(tiny_vision(tmp_path, family), readout)
    layerwise = LayerwiseLosses(model, task).train()
    if model.head is not None:
        torch.nn.init.normal_(model.head.weight)  # at 0 no gradient passes through it
    layerwise(task.collate(task.examples("train")), layers=[3]).mean().backward()
    named = dict(model.encoder.named_parameters())
    frozen = {name for name, weight in named.items() if not weight.requires_grad}
    assert [n for n, one in named.items() if one.requires_grad and one.grad is None] == []
    # BEiT's only norm belongs to its pooler.
    unused = {"pooler", *(["layernorm", "norm"] if readout == "direct" else [])}
    assert {name.split(".")[0] for name in frozen} <= {*unused, "embeddings"}
    assert {name for name in frozen if name.startswith("embed")} <= {"embeddings.mask_token"}


# ---------------------------------------------------------------- what is refused

_FOUR = {key: SMALL_IMAGES[key] for key in list(SMALL_IMAGES)[:4]}
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a text encoder": (BertConfig(vocab_size=20, **_FOUR), {}, "BertModel does not split images"),
    "narrow tokens": (
        ViTConfig(**{**SMALL_IMAGES, "hidden_size": 32}),
        {},
        "its tokens have 32 numbers, .*; set model.readout to linear",
    ),
    "another size": (
        IMAGE_CONFIGS["vit"],
        {"size": {"height": 32, "width": 32}},
        "ViTModel cannot be used as a model of images",
    ),
    "no size": (IMAGE_CONFIGS["vit"], {"do_resize": False}, "makes images of 0×0 pixels"),
    "half patches": (
        IMAGE_CONFIGS["dinov2"],
        {"size": {"height": 18, "width": 16}},
        "images of 18×16 pixels, which patches of 4×4 do not divide",
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
    save_processor(tmp_path, **processor)
    with pytest.raises(UserError, match=reason) as error:
        build(str(tmp_path))
    assert "\n" not in str(error.value)
