"""The network of a vision transformer that denoises video (vit.py says how), and what it
refuses.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn

from cudt.config.models import Lora, PretrainedName
from cudt.data.loader import Batch
from cudt.models import vit_export
from cudt.models.adapters import with_adapters
from cudt.models.anatomy import dissect, hidden_states, with_closing_norm
from cudt.models.base import Visit
from cudt.models.patches import frames_of, frames_shape
from cudt.models.vit import Config
from cudt.models.watched import Watched
from cudt.noise import SignalShape
from cudt.tasks.video import VideoDenoising
from cudt.utils.errors import UserError

#: The modes of F.interpolate, by PIL's number of the resampling method.
_MODES = {2: "bilinear", 3: "bicubic"}


class ViT(Watched):
    """An image encoder; the states of every layer are read as images."""

    signal_is_learned = False

    def __init__(
        self,
        encoder: Any,
        processor: Any,
        task: VideoDenoising,
        readout: Literal["direct", "linear"] = "direct",
    ) -> None:
        size = _size(processor)
        # Not blank: a model could answer 0 to 0, with and without its norm.
        picture = {"pixel_values": torch.linspace(-1, 1, 3 * math.prod(size)).reshape(1, 3, *size)}
        anatomy = dissect(encoder.eval(), picture)
        super().__init__(
            anatomy if readout == "direct" else with_closing_norm(anatomy, encoder, picture)
        )
        self.side = encoder.config.patch_size
        self.processed = _size(processor)
        self.mode = _MODES[processor.resample]
        self.frame = (task.height, task.width)
        # The processor maps a pixel to (scale · x − mean) / deviation in each channel.
        self.scale = processor.rescale_factor if processor.do_rescale else 1.0
        mean, deviation = (
            (processor.image_mean, processor.image_std)
            if processor.do_normalize
            else ([0.0] * 3, [1.0] * 3)
        )
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(3, 1, 1), persistent=False)
        self.encoder = encoder
        self.head: nn.Linear | None = None
        if readout == "linear":
            self.head = nn.Linear(encoder.config.hidden_size, self.side**2)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def adapt(self, lora: Lora, source: PretrainedName) -> None:
        """Train adapters and the readout from now on, and no other weights; the encoder was loaded
        from `source`.
        """
        self.encoder = with_adapters(self.encoder, lora, source)

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return frames_of(batch)

    def signal_shape(self, batch: Batch) -> SignalShape:
        return frames_shape(batch)

    def process(self, frames: Tensor) -> Tensor:
        """The encoder's input, (examples · T, 3, …), from frames (examples, T, height, width) with
        values 0 to 255.
        """
        pictures = frames.flatten(0, 1).unsqueeze(1).expand(-1, 3, -1, -1)
        return (self.scale * self._resized(pictures, self.processed) - self.mean) / self.deviation

    def unprocess(self, pictures: Tensor, n_frames: int) -> Tensor:
        """The inverse of `process`: channels averaged, (examples, T, height, width) with values 0
        to 255.

        Pictures with one channel have it in place of all three.
        """
        grey = ((pictures * self.deviation + self.mean) / self.scale).mean(1, keepdim=True)
        return self._resized(grey, self.frame).reshape(-1, n_frames, *self.frame)

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        with self._visited_by(visit):
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
        """Save the encoder for transformers or its adapters for peft, and the readout in
        readout.safetensors.
        """
        # Such a model lists its last state with the norm, and the direct readout needs it without.
        if self.head is None and self._final_norm[0] is not None:
            return None
        return vit_export.save(self, folder)

    def _resized(self, pictures: Tensor, size: tuple[int, int]) -> Tensor:
        if pictures.shape[-2:] == size:
            return pictures
        return F.interpolate(pictures, size, mode=self.mode, antialias=True)


def _size(processor: Any) -> tuple[int, int]:
    """Height and width of the processor's output; 0 if unknown."""
    size = (
        processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size
    ) or {}
    return size.get("height") or 0, size.get("width") or 0


def check_parts(encoder: Any, processor: Any, config: Config) -> None:
    """Refuse models whose tokens cannot be read as pixels."""
    name = config.pretrained
    side, width = (
        getattr(encoder.config, "patch_size", None),
        getattr(encoder.config, "hidden_size", None),
    )
    if not isinstance(side, int) or width is None:
        raise UserError(
            f"model '{name}': {type(encoder).__name__} does not split images into square patches"
        )
    if config.readout == "direct" and width != 3 * side**2:
        raise UserError(
            f"model '{name}': its tokens have {width} numbers, but a patch of {side}×{side} "
            "pixels in three channels "
            f"has {3 * side**2}; both must agree to read tokens as pixels (as in ViT-Base with "
            "patches of 16); "
            "set model.readout to linear"
        )
    size = _size(processor)
    if not (processor.do_resize and all(size)):
        raise UserError(
            f"model '{name}': its image processor does not define an output height and width"
        )
    if size[0] % side or size[1] % side:
        raise UserError(
            f"model '{name}': images of {size[0]}×{size[1]} pixels do not fit patches of "
            f"{side}×{side}"
        )
    if processor.resample not in _MODES:
        raise UserError(
            f"model '{name}': its image processor must resize by bilinear or bicubic interpolation"
        )


@torch.no_grad()
def check_layout(model: ViT, name: str) -> None:
    """Refuse an encoder whose last tokens are not the patches in their order.

    Two images differ from a blank one, one in its first patch and one in its last. Before the first
    layer, each must differ only in the token of that patch.
    """
    pictures = torch.zeros(3, 3, *model.processed)
    pictures[1, :, : model.side, : model.side] = 1
    pictures[2, :, -model.side :, -model.side :] = 1
    blank, *others = hidden_states(model.encoder, {"pixel_values": pictures})[0]
    n_patches = model.processed[0] * model.processed[1] // model.side**2
    changes = [(other - blank).abs().amax(-1) for other in others]
    # Compared with a tolerance, because libraries may round the same patch differently in another
    # image.
    changed = [(change > 1e-3 * change.max()).nonzero().flatten().tolist() for change in changes]
    if changed != [[len(blank) - n_patches], [len(blank) - 1]]:
        raise UserError(
            f"model '{name}': the last tokens of {type(model.encoder).__name__} are not its patches"
        )


@torch.enable_grad()
def freeze_unused(model: ViT) -> None:
    """Freeze weights that no reconstruction uses (final norm, pooler): processes would wait for
    their gradients.
    """
    batch = {"frames": torch.zeros(1, 1, *model.frame)}
    answer = model.readout(model.layer_states(batch["frames"], batch)[-1], batch)
    weights = list(model.parameters())
    for weight, gradient in zip(
        weights, torch.autograd.grad(answer.sum(), weights, allow_unused=True), strict=True
    ):
        weight.requires_grad_(gradient is not None)
