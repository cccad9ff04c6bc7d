"""Cuts a model of transformers to its first layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from cudt.models.anatomy import dissect
from cudt.models.watched import five_tokens
from cudt.utils.errors import UserError

#: Lists in a configuration with an entry for each layer; transformers refuses them if the number of layers differs.
_OF_EACH_LAYER = ("layer_types", "mlp_layer_types")


def keep_first_layers(encoder: Any, n: int, name: str) -> None:
    """Delete all layers of a text encoder after the first n, and correct its configuration.

    Norms before and after the stack of layers stay. A saved model is the cut one; `name` is for errors.
    """
    layers = dissect(encoder.eval(), five_tokens()).layers
    wrong, kind = f"model.layers = {n}", type(encoder).__name__
    if n > len(layers):
        raise UserError(
            f"{wrong}: '{name}' has {len(layers)} layers; set model.layers to at most {len(layers)}, or to null for all"
        )
    if len(set(layers)) < len(layers):
        raise UserError(
            f"{wrong}: the layers of '{name}' ({kind}) share their weights, so none can be deleted; "
            "set model.layers to null"
        )
    stack = _stack_of(encoder, layers)
    if stack is None or getattr(encoder.config, "num_hidden_layers", None) != len(layers):
        raise UserError(
            f"{wrong}: '{name}' ({kind}) cannot be cut: its layers are not one list with the length "
            "num_hidden_layers of its config.json; set model.layers to null"
        )
    del stack[n:]
    encoder.config.num_hidden_layers = n
    for key in _OF_EACH_LAYER:
        types = getattr(encoder.config, key, None)
        if types is not None and len(types) > n:
            setattr(encoder.config, key, list(types[:n]))


def _stack_of(encoder: nn.Module, layers: Sequence[nn.Module]) -> nn.ModuleList | nn.Sequential | None:
    """The list inside the model that holds exactly these layers, in order; None if there is none."""
    for part in encoder.modules():
        if isinstance(part, nn.ModuleList | nn.Sequential) and list(part) == [*layers]:
            return part
    return None
