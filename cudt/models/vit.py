"""A pretrained vision transformer (ViT, DeiT, DINOv2, any AutoModel for images) that denoises video
frame by frame.

Frames are processed like in the model's own image processor (grey to three channels, size, mean and
deviation), but without cropping, because every pixel has to be reconstructed. `model.readout` says
how the patch tokens of each layer become pixels:

`direct`, the paper's: a patch of p × p pixels in three channels has 3p² numbers. If that is the
width of the model (768 = 16·16·3 for ViT-Base), a token is read as its patch: as pixels, with
channels averaged, on the scale 0 to 255. There is no head and no final norm, because a norm would
remove the brightness and contrast of every patch.

`linear`, for tokens of any width: one linear map for all layers, from the normed token to the p²
grey pixels of its patch. Three channels would be averaged, so 3p² outputs could express no more.
The model's final norm comes first, as in every pre-norm model. It takes the mean and the size of
the token, 2 of its numbers, and the brightness of a patch is in the others, too. Without the norm
one map could not serve all layers: the tokens of DINOv2-small are about 60 times as large after its
last layer as after its third. Fitted by least squares to its states of clean frames of UCSD, the
best shared map has an RMSE of 10 to 20 with the norm, by layer, and of 11 to 27 without. The map
starts at 0: every layer answers the grey that the image processor has as its mean, whose loss is
about f_0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config import models as sections
from cudt.config.schema import NamedSection
from cudt.data import hub
from cudt.models.patch_section import check_video, video_task

if TYPE_CHECKING:
    from cudt.models.vit_network import ViT
    from cudt.tasks.base import Task


Config = sections.Vit


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
    check_parts(encoder, processor, config)
    model = ViT(encoder, processor, video, config.readout)
    check_layout(model, config.pretrained)
    freeze_unused(model)
    if config.lora is not None:
        model.adapt(config.lora, config.source)
    return model
