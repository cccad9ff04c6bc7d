"""The part of a model between its inputs and its head, whose output can be made from any layer's
state.

Most models of transformers with a head are a backbone and a head: `model.bert`, `model.model`,
`model.vit`. The head sees only the backbone's output: the last state after the final norm, and the
pooler's output where there is a pooler. If both are made from the state of layer l instead, the
rest of the model is the readout of layer l, and nothing else has to be computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cudt.models.anatomy import Call, first, same, watch_calls


@dataclass(frozen=True)
class Backbone:
    """A model without its head, and the modules that lead from its last layer to its output."""

    module: nn.Module
    final_norm: nn.Module | None
    """From the last layer's state to `last_hidden_state`; None if they are the same."""
    pooler: nn.Module | None
    """From `last_hidden_state` to `pooler_output`; None if there is none."""

    def output(self, found: Any, state: Tensor) -> Any:
        """The backbone's output if its last layer gave `state`; `found` is its output in a whole
        forward pass.
        """
        last = state if self.final_norm is None else self.final_norm(state)
        changes = {"last_hidden_state": last}
        if self.pooler is not None:
            changes["pooler_output"] = self.pooler(last)
        return dataclasses.replace(found, **changes)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model of transformers inside peft's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


@torch.no_grad()
def find_backbone(
    model: nn.Module, layers: Sequence[nn.Module], inputs: dict[str, Tensor]
) -> Backbone | None:
    """The backbone of a model with a head, found in one forward pass; None if its output cannot be
    made from a state.

    The model must not be in training mode: dropout would hide which modules lead to the output.
    """
    inner = unwrapped(model)
    module = getattr(inner, getattr(inner, "base_model_prefix", "") or "no backbone", None)
    if not isinstance(module, nn.Module) or module is inner:
        return None
    calls = watch_calls(module, lambda: model(**inputs))
    found = next((call[2] for call in reversed(calls) if call[0] is module), None)
    last, pooled = getattr(found, "last_hidden_state", None), getattr(found, "pooler_output", None)
    state = next((first(call[2]) for call in reversed(calls) if call[0] is layers[-1]), None)
    if last is None or state is None:
        return None
    norm = None if same(state, last) else _between(calls, state, last)
    pooler = None if pooled is None else _between(calls, last, pooled)
    if (norm is None and not same(state, last)) or (pooler is None and pooled is not None):
        return None
    return Backbone(module, norm, pooler)


def _between(calls: Sequence[Call], given: Tensor, returned: Tensor) -> nn.Module | None:
    """The module that computed one tensor from another."""
    for module, taken, made in calls:
        if same(first(taken), given) and same(first(made), returned):
            return module
    return None


@contextmanager
def forward_replaced(module: nn.Module, **changes: Any) -> Iterator[None]:
    """Give a module another forward pass, and other attributes, for a while."""
    before = {name: module.__dict__[name] for name in changes if name in module.__dict__}
    module.__dict__.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del module.__dict__[name]
        module.__dict__.update(before)
