"""A pretrained vision transformer (ViT, DeiT, DINOv2, any AutoModel for images) that denoises video
frame by frame.

Frames are processed as by the model's own image processor (grey to three channels, size, mean and
deviation), but without cropping, because every pixel has to be reconstructed. `model.readout` says
how the patch tokens of each layer become pixels:

`direct`, the paper's: a patch of p × p pixels in three channels has 3p² numbers. If that is the
width of the model (768 = 16·16·3 for ViT-Base), a token is read as its patch, with channels
averaged. There is no head and no final norm, which would remove the brightness and contrast of
every patch.

`linear`, for tokens of any width: one linear map for all layers, from the normed token to the p²
grey pixels of its patch. The model's final norm comes first, because the size of the tokens differs
between layers (60 times between the third and the last of DINOv2-small). The map starts at 0: every
layer answers the mean grey of the image processor, whose loss is about f_0.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cudt.config import models as sections
from cudt.config.models import Lora, PretrainedName
from cudt.config.schema import NamedSection
from cudt.config.tasks import VideoSection
from cudt.data import hub
from cudt.data.loader import Batch
from cudt.models.patches import FrameModel, video
from cudt.models.pretrained import Pretrained, dissect, save_encoder, watched, with_adapters
from cudt.tasks.base import Task
from cudt.tasks.video import VideoDenoising
from cudt.utils.device import survive_torchvision_mismatch
from cudt.utils.errors import UserError

survive_torchvision_mismatch()
from torchvision.transforms.v2 import functional  # noqa: E402  (after what lets it be imported)

Config = sections.Vit

#: Python code that restores a frame with what `save_pretrained` wrote.
_SNIPPET = """\
import torch
from safetensors.torch import load_file
from torch.nn.functional import interpolate
{load}
mean, deviation = (torch.tensor(one).view(3, 1, 1) for one in ({mean}, {deviation}))
frame = torch.full({frame}, 128.0)  # a grey picture, 0 to 255
resized = {{"mode": "{mode}", "antialias": True}}
picture = interpolate(frame.expand(1, 3, -1, -1), {size}, **resized)
with torch.no_grad():
    output = encoder(pixel_values=({scale} * picture - mean) / deviation, output_hidden_states=True)
tokens = output.{state}[0, -{rows} * {columns} :]
{read}patches = tokens.reshape({rows}, {columns}, -1, {side}, {side})
restored = patches.permute(2, 0, 3, 1, 4).reshape(-1, *{size})
grey = ((restored * deviation + mean) / {scale}).mean(0)
answer = interpolate(grey.expand(1, 1, -1, -1), {frame}, **resized)[0, 0]
"""
_READ = """\
readout = load_file("FOLDER/readout.safetensors")
tokens = tokens @ readout["weight"].T + readout["bias"]
"""


class ViT(FrameModel, Pretrained):
    """An image encoder; the states of every layer are read as images."""

    def __init__(self, encoder: Any, processor: Any, task: VideoDenoising, linear: bool) -> None:
        self.processed = _size(processor)
        # Not blank: a model could answer 0 to 0, with and without its norm.
        blank = torch.linspace(-1, 1, 3 * math.prod(self.processed))
        picture = {"pixel_values": blank.reshape(1, 3, *self.processed)}
        super().__init__(dissect(encoder.eval(), picture))
        self.side: int = encoder.config.patch_size
        self.resample: int = processor.resample
        self.frame = (task.height, task.width)
        # The processor maps a pixel to (scale · x − mean) / deviation in each channel.
        self.scale = processor.rescale_factor if processor.do_rescale else 1.0
        normalises = processor.do_normalize
        mean, deviation = (
            torch.tensor(values if normalises else [without] * 3).view(3, 1, 1)
            for values, without in ((processor.image_mean, 0.0), (processor.image_std, 1.0))
        )
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("deviation", deviation, persistent=False)
        self.encoder = encoder
        self.head: nn.Linear | None = None
        if linear:
            self.head = nn.Linear(encoder.config.hidden_size, self.side**2)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def adapt(self, lora: Lora, source: PretrainedName) -> None:
        """Train adapters and the readout from now on, and no other weights."""
        self.encoder = with_adapters(self.encoder, lora, source)

    def process(self, frames: Tensor) -> Tensor:
        """The encoder's input, (examples · T, 3, …), from frames (examples, T, height, width) with
        values 0 to 255.
        """
        pictures = frames.flatten(0, 1).unsqueeze(1).expand(-1, 3, -1, -1)
        return (self.scale * self._resized(pictures, self.processed) - self.mean) / self.deviation

    def unprocess(self, pictures: Tensor, n_frames: int) -> Tensor:
        """The inverse of `process`, with channels averaged; pictures with one channel have it in
        place of all three.
        """
        grey = ((pictures * self.deviation + self.mean) / self.scale).mean(1, keepdim=True)
        return self._resized(grey, self.frame).reshape(-1, n_frames, *self.frame)

    def _resized(self, pictures: Tensor, size: tuple[int, int]) -> Tensor:
        return functional.resize(pictures, [*size], self.resample, antialias=True)

    def run(self, signal: Tensor, batch: Batch) -> None:
        self.encoder(pixel_values=self.process(signal))

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        """The patch tokens, which follow class and other tokens, as pixels in the order of the
        patch embedding.
        """
        rows, columns = (length // self.side for length in self.processed)
        tokens = state[:, -rows * columns :]
        if self.head is not None:
            tokens = self.head(self.normed(tokens))
        patches = tokens.reshape(len(tokens), rows, columns, -1, self.side, self.side)
        pictures = patches.permute(0, 3, 1, 4, 2, 5).flatten(2, 3).flatten(3, 4)
        return self.unprocess(pictures, batch["frames"].shape[1])

    def readout_weights(self) -> list[nn.Parameter]:
        return [] if self.head is None else list(self.head.parameters())

    def save_pretrained(self, folder: Path) -> str | None:
        if self.head is None and self._anatomy[0].lists_norm:
            # Its last hidden state is listed with the norm, and the direct readout has none.
            return None
        rows, columns = (length // self.side for length in self.processed)
        # The shortest decimals that are the same in fp32.
        mean, deviation = (
            [float(str(number)) for number in one.flatten().cpu().numpy()]
            for one in (self.mean, self.deviation)
        )
        return _SNIPPET.format(
            load=save_encoder(self.encoder, self.head, folder),
            read=_READ if self.head is not None else "",
            # A linear readout reads normed states, and the direct one states without the norm.
            state="last_hidden_state" if self.head is not None else "hidden_states[-1]",
            frame=self.frame,
            size=self.processed,
            mean=mean,
            deviation=deviation,
            scale=self.scale,
            mode={2: "bilinear", 3: "bicubic"}[self.resample],
            rows=rows,
            columns=columns,
            side=self.side,
        )


def check(config: Config, task: NamedSection, data_root: Path | None) -> None:
    """Refuse tasks without video, and models that are not available."""
    video(task, VideoSection, config.name)
    hub.check(config.source, data_root)


def build(config: Config, task: Task, data_root: Path | None) -> ViT:
    """The model with the processor that belongs to it."""
    frames = video(task, VideoDenoising, config.name)
    encoder = hub.load_encoder(config.source, data_root)
    processor = hub.load_image_processor(config.source, data_root)
    problem = _problem(encoder, _size(processor), config)
    if not problem:
        model = ViT(encoder, processor, frames, config.readout == "linear")
        if not _ends_with_patches(model):
            problem = f"the last tokens of {type(encoder).__name__} are not its patches"
    if problem:
        raise UserError(f"model '{config.pretrained}': {problem}")
    _freeze_unused(model)
    if config.lora is not None:
        model.adapt(config.lora, config.source)
    return model


def _size(processor: Any) -> tuple[int, int]:
    """Height and width of the processor's output; 0 if it does not resize."""
    crops = getattr(processor, "do_center_crop", False)
    size = (processor.crop_size if crops else processor.size if processor.do_resize else {}) or {}
    return size.get("height") or 0, size.get("width") or 0


def _problem(encoder: Any, size: tuple[int, int], config: Config) -> str:
    """Why the tokens of a model cannot be read as pixels; empty if they can."""
    side, width = getattr(encoder.config, "patch_size", None), encoder.config.hidden_size
    if not isinstance(side, int):
        return f"{type(encoder).__name__} does not split images into square patches"
    if config.readout == "direct" and width != 3 * side**2:
        return (
            f"its tokens have {width} numbers, but a patch of {side}×{side} pixels in three "
            f"channels has {3 * side**2}; both must agree to read tokens as pixels (as in ViT-Base "
            "with patches of 16); set model.readout to linear"
        )
    if not all(size) or any(length % side for length in size):
        return (
            f"its image processor makes images of {size[0]}×{size[1]} pixels, which patches of "
            f"{side}×{side} do not divide"
        )
    return ""


@torch.no_grad()
def _ends_with_patches(model: ViT) -> bool:
    """Whether the last tokens of an encoder are the patches in their order.

    Two images differ from a blank one, one in its first patch and one in its last. Before the first
    layer, each must differ only in the token of that patch.
    """
    pictures = torch.zeros(3, 3, *model.processed)
    pictures[1, :, : model.side, : model.side] = 1
    pictures[2, :, -model.side :, -model.side :] = 1
    blank, *others = watched(model.encoder, {"pixel_values": pictures})[1].hidden_states[0]
    n_patches = math.prod(model.processed) // model.side**2
    changes = [(other - blank).abs().amax(-1) for other in others]
    # With a tolerance, because libraries may round the same patch differently in another image.
    changed = [(change > 1e-3 * change.max()).nonzero().flatten().tolist() for change in changes]
    return changed == [[len(blank) - n_patches], [len(blank) - 1]]


@torch.enable_grad()
def _freeze_unused(model: ViT) -> None:
    """Freeze weights that no reconstruction uses (final norm, pooler): processes would wait for
    their gradients.
    """
    batch = {"frames": torch.zeros(1, 1, *model.frame)}
    answer = model.readout(model.layer_states(batch["frames"], batch)[-1], batch)
    weights = list(model.parameters())
    gradients = torch.autograd.grad(answer.sum(), weights, allow_unused=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.requires_grad_(gradient is not None)
