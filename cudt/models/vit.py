"""A pretrained vision transformer (ViT, DeiT, any AutoModel for images) that denoises video frame by frame.

Frames are processed like in the model's own image processor (grey to three channels, size, mean and deviation), but
without cropping, because every pixel has to be reconstructed. A patch of p × p pixels in three channels has 3p²
numbers. If that is the width of the model (768 = 16·16·3 for ViT-Base), each layer's patch tokens are read as the
reconstruction: as pixels, with channels averaged, on the scale 0 to 255. There is no head and no final norm, because a
norm would remove the brightness and contrast of every patch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config.pretrained import PretrainedName, PretrainedSection
from cudt.config.schema import FINE_TUNING, NamedSection, Schedule
from cudt.data import hub
from cudt.models.patch_section import check_video, video_task

if TYPE_CHECKING:
    from cudt.models.vit_network import ViT
    from cudt.tasks.base import Task


class Config(PretrainedSection):
    """A pretrained vision transformer."""

    pretrained: str
    """Pretrained model: a name on the Hugging Face hub, a folder, or `package:name/folder` of an installed package."""

    @property
    def schedule(self) -> Schedule:
        return FINE_TUNING

    @property
    def source(self) -> PretrainedName:
        return self.named(self.pretrained)


def check(config: Config, task: NamedSection, data_root: Path | None) -> None:
    """Refuse tasks without video, and models that are not available."""
    check_video(task, config.name)
    hub.check(config.source, data_root)


def build(config: Config, task: Task, data_root: Path | None) -> ViT:
    """The model with the processor that belongs to it."""
    from cudt.models.vit_network import ViT, check_layout, check_parts, freeze_unused

    video = video_task(task, config.name)
    encoder = hub.load_encoder(config.source, data_root)
    processor = hub.load_image_processor(config.source, data_root)
    check_parts(encoder, processor, config.pretrained)
    model = ViT(encoder, processor, video)
    check_layout(model, config.pretrained)
    freeze_unused(model)
    return model
