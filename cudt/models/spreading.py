"""Places the layers of a model on several devices (`model.device_map: auto`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from cudt.models.base import LayeredModel


def spread(model: LayeredModel, devices: Sequence[torch.device]) -> None:
    """Give each device an equal share of the layers, in their order; everything else is on the first.

    A layer gets its inputs from the first device and gives its output back to it, where the readout is: every layer is
    read, so its state has to go there anyway.
    """
    layers = model.layer_modules()
    model.to(devices[0])
    for number, layer in enumerate(layers):
        where = devices[number * len(devices) // len(layers)]
        if where != devices[0]:
            layer.to(where)
            add_hook_to_module(layer, AlignDevicesHook(execution_device=where, io_same_device=True))
