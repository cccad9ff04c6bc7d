from __future__ import annotations

import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoModel, BertConfig, ViTConfig, ViTMAEConfig, YolosConfig

from cudt.data import hub
from cudt.models import vit
from cudt.models.anatomy import dissect
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.vit import Config
from cudt.models.vit_network import ViT
from cudt.tasks import reviews
from cudt.utils.errors import UserError
from tests.pretrained import IMAGE_CONFIGS, SMALL_IMAGES, save_processor, save_random, tiny_vision
from tests.shapes import batch_of, tiny_videos

FAMILIES = list(IMAGE_CONFIGS)
EXTRA_TOKENS = {"vit": 1, "deit": 2, "beit": 1, "dinov2": 1, "dinov2-registers": 3, "dinov3": 3}
#: What no reconstruction depends on.
UNUSED = {
    "beit": ["embeddings.mask_token"],
    "dinov3": ["embeddings.mask_token", "norm.weight", "norm.bias"],
}
OTHER_SIZE = {"size": {"height": 24, "width": 32}}
PROCESSORS: dict[str, dict[str, Any]] = {
    "its own": {},
    "other means": {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "no mean": {"do_normalize": False},
    "another scale": {"rescale_factor": 1 / 128},
    "no scale": {"do_rescale": False, "image_mean": [120.0, 110.0, 100.0], "image_std": [60.0, 50.0, 40.0]},
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
    return 128 + 90 * torch.randn(examples, length, size, size, generator=torch.Generator().manual_seed(0))


# ---------------------------------------------------------------- layers


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_layer_states_are_those_that_the_library_lists_and_the_last_is_what_its_norm_gets(folders, family):
    model, batch = build(folders[family]), batch_of(noisy_frames())
    plain = AutoModel.from_pretrained(folders[family]).eval()
    expected = plain(pixel_values=model.process(batch["frames"]), output_hidden_states=True)
    states = model.layer_states(batch["frames"], batch)
    assert model.n_layers == len(states) == len(expected.hidden_states) - 1 == 3
    for state, listed in zip(states[:-1], expected.hidden_states[1:-1], strict=True):
        assert torch.allclose(state, listed, atol=1e-6)
    norm = plain.norm if family == "dinov3" else plain.layernorm
    assert torch.allclose(norm(states[-1]), expected.last_hidden_state, atol=1e-6)


@torch.no_grad()
def test_the_last_state_has_not_gone_through_the_norm(folders):
    model, batch = build(folders["vit"]), batch_of(noisy_frames())
    expected = AutoModel.from_pretrained(folders["vit"])(
        pixel_values=model.process(batch["frames"]), output_hidden_states=True
    )
    last = model.layer_states(batch["frames"], batch)[-1]
    assert torch.allclose(last, expected.hidden_states[-1], atol=1e-6)
    assert not torch.allclose(last, expected.last_hidden_state, atol=0.1)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_number_of_layers_is_read_off_the_model(tmp_path, depth):
    model = build(tiny_vision(tmp_path, num_hidden_layers=depth))
    assert model.n_layers == len(model.layer_states(noisy_frames(), batch_of(noisy_frames()))) == depth


@torch.no_grad()
def test_frames_are_looked_at_one_by_one(folders):
    model, frames = build(folders["vit"]), noisy_frames()
    together = [model.readout(state, batch_of(frames)) for state in model.layer_states(frames, batch_of(frames))]
    for t in range(3):
        batch = batch_of(frames[:, t : t + 1])
        for answer, state in zip(together, model.layer_states(batch["frames"], batch), strict=True):
            assert torch.allclose(model.readout(state, batch), answer[:, t : t + 1], atol=1e-2)


@torch.no_grad()
def test_hooks_sleep_outside_of_a_visit_even_after_one_that_failed(folders):
    model, batch = build(folders["vit"]), batch_of(noisy_frames())

    def fail(state):
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        model.visit_layers(batch["frames"], batch, fail)
    model.encoder(pixel_values=model.process(batch["frames"]))


@torch.no_grad()
def test_no_state_outlives_its_layer(folders):
    model, batch = build(folders["vit"]), batch_of(noisy_frames())
    alive: list[int] = []
    seen: list[weakref.ref[torch.Tensor]] = []

    def visit(state: torch.Tensor) -> None:
        alive.append(sum(reference() is not None for reference in seen))
        seen.append(weakref.ref(state))

    model.visit_layers(batch["frames"], batch, visit)
    assert alive == [0, 1, 1]
    assert all(reference() is None for reference in seen)


@pytest.mark.parametrize("layers", [None, [3]])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_that_is_trained_is_left_without_a_gradient(folders, family, layers):
    """Processes that train together wait for the gradients of all weights."""
    task = tiny_videos()
    layerwise = LayerwiseLosses(build(folders[family]), task).train()
    losses = layerwise(task.collate(task.examples("train")), layers=layers)
    losses.mean().backward()
    frozen = {
        name.removeprefix("model.encoder.") for name, weight in layerwise.named_parameters() if not weight.requires_grad
    }
    assert [name for name, weight in layerwise.named_parameters() if weight.requires_grad and weight.grad is None] == []
    assert {name for name in frozen if ".layer" in f".{name}" and "layernorm" not in name} == set()
    assert {name.split(".")[0] for name in frozen} <= {"layernorm", "norm", "pooler", "embeddings"}
    assert {name for name in frozen if name.startswith("embeddings")} <= {"embeddings.mask_token"}


def test_a_vision_transformer_has_its_layers_and_no_norm_behind_them_in_its_list_of_states(folders):
    encoder = AutoModel.from_pretrained(folders["vit"]).eval()
    anatomy = dissect(encoder, {"pixel_values": torch.rand(1, 3, 16, 16)})
    assert anatomy.layers == tuple(module for module in encoder.modules() if type(module).__name__ == "ViTLayer")
    assert anatomy.final_norm is None


# ---------------------------------------------------------------- pixels


@pytest.mark.parametrize("settings", PROCESSORS.values(), ids=PROCESSORS)
def test_frames_become_what_pillow_makes_of_them(tmp_path, settings):
    """Pillow rounds after each of two passes, and clips: pixels may differ by two of 255, and none is near the ends."""
    from transformers import ViTImageProcessorPil

    model, frames = with_processor(tmp_path, settings), noisy_frames().round().clamp(60, 190)
    pictures = [frame.to(torch.uint8).expand(3, -1, -1).numpy() for frame in frames.flatten(0, 1)]
    processor = ViTImageProcessorPil.from_pretrained(tmp_path)
    expected = processor(images=pictures, return_tensors="pt")["pixel_values"]
    assert model.process(frames).shape == expected.shape
    rounding = 2 * model.scale / model.deviation if "size" in settings else 1e-4
    assert bool(((model.process(frames) - expected).abs() <= rounding).all())


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision, which cudt does not install")
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


@pytest.mark.parametrize("settings", [{}, PROCESSORS["other means"]], ids=["its own", "other means"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_that_hold_the_pixels_of_their_patches_are_read_as_the_frames(tmp_path, family, settings):
    """In the order of the patch embedding's kernel, behind class and other tokens."""
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
    deviation = sum(settings.get("image_std", [0.5] * 3)) / 3
    assert tiny_videos().scores(away, batch).mean().sqrt().item() == pytest.approx(0.1 * deviation * 255, rel=1e-3)


@torch.no_grad()
def test_a_border_that_the_processor_would_cut_off_stays(tmp_path):
    cut = {"size": {"height": 20, "width": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}}
    model, frames = build(tiny_vision(tmp_path / "cut", "deit", processor=cut), size=24), noisy_frames(size=24)
    whole = build(tiny_vision(tmp_path / "whole", "deit"), size=24)
    assert torch.equal(model.process(frames), whole.process(frames))


@torch.no_grad()
def test_the_width_of_vit_base_is_that_of_its_patches(tmp_path):
    assert ViTConfig().hidden_size == 768 == 3 * ViTConfig().patch_size ** 2
    save_random(tmp_path, ViTConfig(num_hidden_layers=1, image_size=32, intermediate_size=32))
    save_processor(tmp_path, size={"height": 32, "width": 32})
    model, batch = build(str(tmp_path)), batch_of(noisy_frames())
    (state,) = model.layer_states(batch["frames"], batch)
    assert model.readout(state, batch).shape == batch["frames"].shape


# ---------------------------------------------------------------- what is refused

SHORT_BERT = BertConfig(**{"vocab_size": 20, **{key: SMALL_IMAGES[key] for key in list(SMALL_IMAGES)[:4]}})
REFUSED: dict[str, tuple[Any, dict[str, Any] | None, str]] = {
    "another width": (
        ViTConfig(**{**SMALL_IMAGES, "hidden_size": 64}),
        {},
        "tokens have 64 numbers, but .* has 48",
    ),
    "a text encoder": (SHORT_BERT, None, "preprocessor_config.json"),
    "a text encoder with an image processor": (SHORT_BERT, {}, "BertModel does not split images into square patches"),
    "no image processor": (IMAGE_CONFIGS["vit"], None, "preprocessor_config.json"),
    "another size": (
        IMAGE_CONFIGS["vit"],
        {"size": {"height": 32, "width": 32}},
        "ViTModel cannot be used as a model of im",
    ),
    "a size for one edge": (
        IMAGE_CONFIGS["vit"],
        {"size": {"shortest_edge": 16}},
        "does not define an output height and width",
    ),
    "no size": (IMAGE_CONFIGS["vit"], {"do_resize": False}, "does not define an output height and width"),
    "no whole patches": (
        IMAGE_CONFIGS["vit"],
        {"size": {"height": 18, "width": 16}},
        "images of 18×16 pixels do not fit",
    ),
    "another way to resize": (
        IMAGE_CONFIGS["vit"],
        {"resample": 1},
        "must resize by bilinear or bicubic interpolation",
    ),
    "one channel": (ViTConfig(**SMALL_IMAGES, num_channels=1), {}, "ViTModel cannot be used as a model of images"),
    "masked patches": (ViTMAEConfig(**SMALL_IMAGES), {}, "the last tokens of ViTMAEModel are not its patches"),
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


def test_a_task_that_is_not_video_is_refused(folders):
    task = reviews.build(reviews.Config(name="reviews", train=4, validation=4, test=4), None, None)
    with pytest.raises(UserError, match=r"^model vit needs a video task"):
        vit.build(Config(name="vit", pretrained=folders["vit"]), task, None)


def test_an_image_processor_is_looked_for_where_its_model_is(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    tiny_vision(tmp_path / "models" / "owner" / "tiny", processor=OTHER_SIZE)
    assert hub.load_image_processor("owner/tiny", tmp_path).size["width"] == 32
    with pytest.raises(UserError, match=r"hf download owner/gone --local-dir \S+models/owner/gone`$") as error:
        hub.load_image_processor("owner/gone", tmp_path)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- the linear readout

NARROW: dict[str, Any] = {"hidden_size": 32}


def build_linear(folder: str, size: int = 16) -> ViT:
    return vit.build(Config(name="vit", pretrained=folder, readout="linear"), tiny_videos(size), None).eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("width", [32, 48, 64])
@torch.no_grad()
def test_a_linear_readout_reads_tokens_of_any_width(tmp_path, family, width):
    """The oracle writes one pixel after the other, from what the library itself returns."""
    model = build_linear(tiny_vision(tmp_path, family, hidden_size=width))
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
        assert answer[0, t, row, column].item() == pytest.approx((0.5 * normalised.item() + 0.5) * 255, rel=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_final_norm_is_applied_once_to_every_layer(tmp_path, family):
    model, frames = build_linear(tiny_vision(tmp_path, family, **NARROW)), noisy_frames()
    plain = AutoModel.from_pretrained(tmp_path).eval()
    norm = plain.norm if family == "dinov3" else plain.layernorm
    for state in model.layer_states(frames, batch_of(frames)):
        assert torch.equal(model.normed(state), norm(state))


@pytest.mark.parametrize("settings", [{}, PROCESSORS["other means"], PROCESSORS["no scale"]], ids=str)
@torch.no_grad()
def test_every_layer_starts_with_the_mean_grey_of_the_image_processor(tmp_path, settings):
    model, frames = build_linear(tiny_vision(tmp_path, "dinov2", processor=settings, **NARROW)), noisy_frames()
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
    gradients = {name: weight.grad for name, weight in layerwise.named_parameters() if weight.requires_grad}
    # BEiT's only norm behind its layers belongs to its pooler.
    norm = {"dinov3": ["norm.weight"], "beit": []}.get(family, ["layernorm.weight"])
    assert {"model.head.weight", "model.head.bias", *(f"model.encoder.{name}" for name in norm)} <= gradients.keys()
    assert all(gradient is not None for gradient in gradients.values())


def test_a_linear_readout_learns_what_the_direct_one_cannot_start_with(tmp_path):
    """A hundred steps of the readout alone on clean frames leave less than half of the grey's loss in every layer."""
    task = tiny_videos()
    layerwise = LayerwiseLosses(build_linear(tiny_vision(tmp_path, "dinov2", **NARROW)), task)
    batch = task.collate(task.examples("train"))
    optimizer = torch.optim.Adam(layerwise.model.readout_weights(), lr=2e-2)
    first = layerwise(batch).mean(1).detach()
    for _ in range(100):
        layerwise(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (layerwise(batch).mean(1) < 0.5 * first).all()


@torch.no_grad()
def test_positions_of_dinov2_are_interpolated_to_the_size_of_the_frames(tmp_path):
    """Pretrained on 24 × 24 pixels and used on 16 × 16, as facebook/dinov2-small is on 518 and 224."""
    cut = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}}
    model, frames = (
        build_linear(tiny_vision(tmp_path, "dinov2", processor=cut, image_size=24, **NARROW)),
        noisy_frames(),
    )
    assert model.layer_states(frames, batch_of(frames))[0].shape == (6, 1 + 16, 32)
    assert model.process(frames).shape == (6, 3, 16, 16)


@pytest.mark.parametrize("case", [name for name in REFUSED if name != "another width"])
def test_what_a_linear_readout_cannot_read_is_refused_in_a_line(tmp_path, case):
    config, processor, reason = REFUSED[case]
    save_random(tmp_path, config)
    if processor is not None:
        save_processor(tmp_path, **processor)
    with pytest.raises(UserError, match=reason) as error:
        build_linear(str(tmp_path))
    assert "\n" not in str(error.value)


def test_tokens_of_another_width_are_refused_with_the_way_to_read_them(tmp_path):
    with pytest.raises(UserError, match=r"set model\.readout to linear$"):
        build(tiny_vision(tmp_path, **NARROW))
