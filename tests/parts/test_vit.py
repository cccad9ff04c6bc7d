"""Vision transformers that denoise video: frames as their processor makes them, and both readouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import AutoModel

from cudt.data import hub
from cudt.models import vit
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.vit import Config, ViT
from cudt.utils.errors import UserError
from tests.pretrained import IMAGE_CONFIGS, tiny_vision
from tests.videos import batch_of, tiny_videos

EXTRA_TOKENS = {"vit": 1, "beit": 1, "dinov2": 1, "dinov3": 3}
OTHER_MEANS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSORS: dict[str, dict[str, Any]] = {
    "its own": {},
    "other means and scale": {**OTHER_MEANS, "rescale_factor": 1 / 128},
    "another size, bicubic": {"size": {"height": 24, "width": 32}, "resample": 3},
}
families = pytest.mark.parametrize("family", IMAGE_CONFIGS)


def build(folder: str, readout: Any = "direct") -> ViT:
    config = Config(name="vit", pretrained=folder, readout=readout)
    return vit.build(config, tiny_videos(), None).eval()


def noisy_frames() -> Tensor:
    """Some pixels are below 0 or above 255, as noise makes them."""
    return 128 + 90 * torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("settings", PROCESSORS.values(), ids=PROCESSORS)
def test_noisy_frames_become_what_the_processor_makes_of_them_and_come_back(tmp_path, settings):
    image_size = [*settings.get("size", {"height": 16, "width": 16}).values()]
    model = build(tiny_vision(tmp_path, processor=settings, image_size=image_size))
    frames = noisy_frames()
    pictures = [frame.expand(3, -1, -1) for frame in frames.flatten(0, 1)]
    processor = hub.load("AutoImageProcessor", str(tmp_path), None)
    expected = processor(images=pictures, return_tensors="pt")["pixel_values"]
    assert torch.allclose(model.process(frames), expected, rtol=1e-4, atol=1e-4)
    if "size" in settings:
        # What is resized twice keeps its slow changes alone.
        ramp = torch.linspace(0, 255, 16)
        frames = (0.5 * ramp + 0.5 * ramp.unsqueeze(1)).expand(2, 3, 16, 16)
    returned = model.unprocess(model.process(frames), 3)
    assert (returned - frames).abs().max().item() < (10 if "size" in settings else 1e-3)


@families
def test_tokens_that_hold_the_pixels_of_their_patches_are_read_as_the_frames(tmp_path, family):
    """In the order of the patch embedding's kernel, behind class and other tokens."""
    model = build(tiny_vision(tmp_path, family, processor=OTHER_MEANS))
    frames = noisy_frames()
    patches = F.unfold(model.process(frames), kernel_size=4, stride=4).mT
    others = torch.randn(len(patches), EXTRA_TOKENS[family], 48)
    answer = model.readout(torch.cat([others, patches], dim=1), batch_of(frames))
    assert torch.allclose(answer, frames, atol=1e-2)
    state = model.layer_states(frames, batch_of(frames))[0]
    assert state.shape == (6, EXTRA_TOKENS[family] + 16, 48)


@pytest.mark.parametrize("family", ["vit", "dinov2"])
@torch.no_grad()
def test_a_linear_readout_maps_normed_tokens_to_the_pixels_of_their_patches(tmp_path, family):
    model, frames = build(tiny_vision(tmp_path, family), "linear"), noisy_frames()
    plain = AutoModel.from_pretrained(tmp_path).eval()
    states = model.layer_states(frames, batch_of(frames))
    assert model.head is not None
    for state in states:  # the map starts at 0
        read = model.readout(state, batch_of(frames))
        assert torch.allclose(read, torch.tensor(127.5), atol=1e-2)
    torch.nn.init.normal_(model.head.weight)
    torch.nn.init.normal_(model.head.bias)
    closed = plain(pixel_values=model.process(frames)).last_hidden_state.unflatten(0, (2, 3))
    answer = model.readout(states[-1], batch_of(frames))
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
    assert [n for n, one in named.items() if one.requires_grad and one.grad is None] == []
    frozen = {name.split(".")[0] for name, weight in named.items() if not weight.requires_grad}
    assert frozen <= {"pooler", "layernorm", "norm", "embeddings"}


def test_what_cannot_be_read_as_pixels_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"its tokens have 32 numbers, .*; set model.readout"):
        build(tiny_vision(tmp_path / "narrow", hidden_size=32))
    with pytest.raises(UserError, match="of 18×16 pixels, which patches of 4×4 do not"):
        build(tiny_vision(tmp_path / "high", processor={"size": {"height": 18, "width": 16}}))
