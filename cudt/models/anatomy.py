"""Where the layers of an encoder of transformers are, whatever its family calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cudt.utils.errors import UserError


@dataclass(frozen=True)
class Anatomy:
    """The parts of an encoder that layerwise descent looks at."""

    layers: tuple[nn.Module, ...]
    """The modules whose outputs are X_1 … X_L, in order; one module may stand for several layers that share it."""
    final_norm: nn.Module | None
    """What a pre-norm encoder puts after its last layer; every layer's state goes through it to be read."""


Call = tuple[nn.Module, Any, Any]
"""A module, what it was given, what it gave."""


def dissect(encoder: Any, inputs: dict[str, Tensor]) -> Anatomy:
    """Find the layers by watching one forward pass: they are what gives the states that the encoder itself lists.

    Families name and nest their layers differently, but all list their hidden states.
    """
    calls, states = _watch(encoder, inputs)
    by_class: dict[type, list[Call]] = {}
    for call in calls:
        by_class.setdefault(type(call[0]), []).append(call)
    # A part of a layer may give the same states; what contains it is finished, and thus listed, after it.
    for candidates in reversed(list(by_class.values())):
        if len(candidates) == len(states) and _give(candidates, states[:-1]):
            last = candidates[-1][2]
            layers = tuple(call[0] for call in candidates)
            if _same(last, states[-1]):
                return Anatomy(layers, None)
            for module, given, returned in calls:
                if _same(given, last) and _same(returned, states[-1]):
                    return Anatomy(layers, module)
    raise UserError(f"{type(encoder).__name__}: no layers found that give its {len(states)} hidden states")


@torch.no_grad()
def _watch(encoder: Any, inputs: dict[str, Tensor]) -> tuple[list[Call], Sequence[Tensor]]:
    """Every module's call in one forward pass, in the order in which they end, and the states that are listed."""
    calls: list[Call] = []
    hooks = [
        module.register_forward_hook(lambda *call: calls.append((call[0], first(call[1]), first(call[2]))))
        for module in encoder.modules()
    ]
    try:
        output = encoder(**inputs, output_hidden_states=True)
        return calls, output.hidden_states[1:]
    except Exception as error:  # whatever it wants that is not this
        what = "text" if "input_ids" in inputs else "images"
        raise UserError(f"{type(encoder).__name__} is not an encoder of {what} that cudt can read: {error}") from None
    finally:
        for hook in hooks:
            hook.remove()


def _give(calls: Sequence[Call], states: Sequence[Tensor]) -> bool:
    return all(_same(call[2], state) for call, state in zip(calls, states, strict=False))


def first(value: Any) -> Any:
    """The tensor of interest in what a module was given or gives: itself, or the first of several."""
    if isinstance(value, tuple | list):
        return value[0] if value else None
    return value[0] if hasattr(value, "to_tuple") else value


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
