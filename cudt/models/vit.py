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
between layers. The map starts at 0: every layer answers the mean grey of the image processor, whose
loss is about f_0.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cudt.config import models as sections
from cudt.data import hub
from cudt.data.loader import Batch
from cudt.models.patches import FrameModel, frame_size
from cudt.models.pretrained import Pretrained, dissect, save_encoder, with_adapters
from cudt.tasks.base import Task
from cudt.utils.device import survive_torchvision_mismatch
from cudt.utils.errors import UserError

survive_torchvision_mismatch()
from torchvision.transforms.v2 import functional  # noqa: E402  (after what lets it be imported)

Config = sections.Vit


class ViT(FrameModel, Pretrained):
    """An image encoder; the last tokens of every layer, one for each patch, are read as images."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, encoder: Any, processor: Any, frame: tuple[int, int], linear: bool) -> None:
        self.processed = _size(processor)
        # Not blank: a model could answer 0 to 0, with and without its norm.
        blank = torch.linspace(-1, 1, 3 * math.prod(self.processed))
        picture = {"pixel_values": blank.reshape(1, 3, *self.processed)}
        super().__init__(dissect(encoder.eval(), picture))
        self.side: int = encoder.config.patch_size
        self.resample: int = processor.resample
        self.frame = frame
        # The processor maps a pixel to (scale · x − mean) / deviation in each channel.
        self.scale: float = processor.rescale_factor
        for name, values in (("mean", processor.image_mean), ("deviation", processor.image_std)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)
        self.encoder = encoder
        self.head: nn.Linear | None = None
        if linear:
            self.head = nn.Linear(encoder.config.hidden_size, self.side**2)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def process(self, frames: Tensor) -> Tensor:
        """The encoder's input, (examples · T, 3, …), from frames with values 0 to 255."""
        pictures = frames.flatten(0, 1).unsqueeze(1).expand(-1, 3, -1, -1)
        return (self.scale * self._resized(pictures, self.processed) - self.mean) / self.deviation

    def unprocess(self, pictures: Tensor, n_frames: int) -> Tensor:
        """The inverse of `process` for pictures with three channels, which are averaged, or one."""
        grey = ((pictures * self.deviation + self.mean) / self.scale).mean(1, keepdim=True)
        return self._resized(grey, self.frame).reshape(-1, n_frames, *self.frame)

    def _resized(self, pictures: Tensor, size: tuple[int, int]) -> Tensor:
        return functional.resize(pictures, [*size], self.resample, antialias=True)

    def run(self, signal: Tensor, batch: Batch) -> None:
        self.encoder(pixel_values=self.process(signal))

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        """The patch tokens, which are the last ones, as pixels in the patch embedding's order."""
        rows, columns = (length // self.side for length in self.processed)
        tokens = state[:, -rows * columns :]
        if self.head is not None:
            tokens = self.head(self.normed(tokens))
        patches = tokens.reshape(len(tokens), rows, columns, -1, self.side, self.side)
        pictures = patches.permute(0, 3, 1, 4, 2, 5).flatten(2, 3).flatten(3, 4)
        return self.unprocess(pictures, batch["frames"].shape[1])

    def readout_weights(self) -> list[nn.Parameter]:
        return [] if self.head is None else list(self.head.parameters())

    def save_pretrained(self, folder: Path) -> str:
        return save_encoder(self.encoder, self.head, folder)


def build(config: Config, task: Task, data_root: Path | None) -> ViT:
    """The model with the processor that belongs to it."""
    frame = frame_size(task)
    encoder = hub.load_model("AutoModel", config.source, data_root)
    processor = hub.load("AutoImageProcessor", config.source, data_root)
    side, width = encoder.config.patch_size, encoder.config.hidden_size
    height, length = _size(processor)
    if config.readout == "direct" and width != 3 * side**2:
        raise UserError(
            f"model '{config.pretrained}': its tokens have {width} numbers, and a patch of "
            f"{side}×{side} pixels in three channels has {3 * side**2}; set model.readout to linear"
        )
    if not height or not length or height % side or length % side:
        raise UserError(
            f"model '{config.pretrained}': its image processor makes images of {height}×{length} "
            f"pixels, which patches of {side}×{side} do not divide; choose another model"
        )
    model = ViT(encoder, processor, frame, config.readout == "linear")
    _freeze_unused(model)
    if config.lora is not None:
        model.encoder = with_adapters(encoder, config.lora, config.source)
    return model


def _size(processor: Any) -> tuple[int, int]:
    """Height and width of the processor's output; 0 if it does not resize."""
    crops = getattr(processor, "do_center_crop", False)
    size = (processor.crop_size if crops else processor.size if processor.do_resize else {}) or {}
    return size.get("height") or 0, size.get("width") or 0


@torch.enable_grad()
def _freeze_unused(model: ViT) -> None:
    """Freeze what no reconstruction uses (final norm, pooler): processes wait for gradients."""
    batch = {"frames": torch.zeros(1, 1, *model.frame)}
    answer = model.readout(model.layer_states(batch["frames"], batch)[-1], batch)
    weights = list(model.parameters())
    gradients = torch.autograd.grad(answer.sum(), weights, allow_unused=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.requires_grad_(gradient is not None)
