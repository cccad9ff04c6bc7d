"""torch.compile for the layers of a model, one by one (`training.compile`)."""

from __future__ import annotations

import torch

from cudt.models.base import LayeredModel
from cudt.utils.errors import UserError


def compile_layers(model: LayeredModel) -> None:
    """Compile the forward pass of each layer, in place; names of weights and hooks stay as they
    are.

    Layer by layer, because the layers to read and to back-propagate change between updates: a
    compiled whole would be compiled anew for each choice. Layers of one kind share their code.
    """
    modules = model.layer_modules()
    if not modules:
        raise UserError(
            f"training.compile: {type(model).__name__} has no layers that torch.compile can "
            "compile one by one; "
            "set training.compile to false"
        )
    for module in modules:
        # Only `forward`: hooks run outside of it.
        module.forward = torch.compile(module.forward)
