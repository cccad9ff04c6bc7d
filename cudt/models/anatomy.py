"""Finds the layers of a model of transformers, whatever its family calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cudt.utils.errors import UserError


@dataclass(frozen=True)
class Anatomy:
    """The layers of a model, and its final norm."""

    layers: tuple[nn.Module, ...]
    """The modules whose outputs are X_1 … X_L, in order; layers that share their weights are the
    same module."""
    final_norm: nn.Module | None
    """The norm after the last layer of a pre-norm model, which belongs to the readout of every
    layer."""


#: How transformers marks a model that has its hooks.
_HOOKED = "_output_capturing_hooks_installed"

T = TypeVar("T")
Call = tuple[nn.Module, Any, Any]
"""A module, its inputs, its outputs; `_watch` keeps only the first of each."""


def dissect(encoder: Any, inputs: dict[str, Tensor]) -> Anatomy:
    """Find the layers in one forward pass: the modules whose outputs are the hidden states that the
    model lists.

    Families name and nest their layers differently, but all return `hidden_states`.
    """
    calls, listed = _watch(encoder, inputs, lambda: hidden_states(encoder, inputs))
    states = listed[1:]
    by_class: dict[type, list[Call]] = {}
    for call in calls:
        by_class.setdefault(type(call[0]), []).append(call)
    # A part of a layer may have the same outputs. The layer that contains it finishes, and is
    # recorded, after it.
    ordered = list(reversed(by_class.values()))
    if len(states) == 1:
        # Every module that is called once might be a single layer. A layer's input tells it from
        # the model around it.
        ordered.sort(key=lambda candidates: not same(candidates[0][1], listed[0]))
    for candidates in ordered:
        if len(candidates) == len(states) and _give(candidates, states[:-1]):
            last = candidates[-1][2]
            layers = tuple(call[0] for call in candidates)
            if same(last, states[-1]):
                return Anatomy(layers, None)
            for module, given, returned in calls:
                if same(given, last) and same(returned, states[-1]):
                    return Anatomy(layers, module)
    raise UserError(
        f"{type(encoder).__name__}: cannot find the layers that produce its {len(states)} hidden "
        "states"
    )


def with_closing_norm(anatomy: Anatomy, encoder: Any, inputs: dict[str, Tensor]) -> Anatomy:
    """The anatomy with the norm between the last layer and `last_hidden_state`, if there is one.

    Vision transformers list their last hidden state without it, so that `dissect` does not see it.
    """
    calls, closed = _watch(encoder, inputs, lambda: encoder(**inputs).last_hidden_state)
    last = [returned for module, _, returned in calls if module is anatomy.layers[-1]][-1]
    if same(last, closed):
        return Anatomy(anatomy.layers, None)
    for module, given, returned in calls:
        if same(given, last) and same(returned, closed):
            return Anatomy(anatomy.layers, module)
    raise UserError(
        f"{type(encoder).__name__}: more than a norm follows its last layer, which no readout "
        "can contain"
    )


@torch.no_grad()
def _watch(encoder: Any, inputs: dict[str, Tensor], run: Callable[[], T]) -> tuple[list[Call], T]:
    """The calls of all modules in one forward pass, in the order in which they finish, and what
    `run` returns.
    """
    answers: list[T] = []
    try:
        calls = watch_calls(encoder, lambda: answers.append(run()))
    except Exception as error:  # models that need other inputs raise many kinds of errors
        what = "text" if "input_ids" in inputs else "images"
        raise UserError(
            f"{type(encoder).__name__} cannot be used as a model of {what}: {error}"
        ) from None
    return [(module, first(given), first(returned)) for module, given, returned in calls], answers[
        0
    ]


def watch_calls(model: nn.Module, run: Callable[[], Any]) -> list[Call]:
    """The calls of a model and its modules while `run` runs, in the order in which they finish."""
    calls: list[Call] = []
    hooks = [
        module.register_forward_hook(lambda *call: calls.append(call)) for module in model.modules()
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def hidden_states(encoder: Any, inputs: dict[str, Tensor]) -> Sequence[Tensor]:
    """The hidden states that a model of transformers lists, the embedding first.

    The first such call makes transformers add hooks to modules inside the layers, for good, which
    torch.compile cannot trace. There is no function to remove them, so it is done here.
    """
    before = {
        module: (set(module._forward_hooks), _HOOKED in vars(module))
        for module in encoder.modules()
    }
    try:
        return encoder(**inputs, output_hidden_states=True).hidden_states
    finally:
        for module, (hooks, was_hooked) in before.items():
            for added in set(module._forward_hooks) - hooks:
                del module._forward_hooks[added]
            if not was_hooked:
                # Otherwise a later call would not add them again, and would list nothing.
                vars(module).pop(_HOOKED, None)


def _give(calls: Sequence[Call], states: Sequence[Tensor]) -> bool:
    return all(same(call[2], state) for call, state in zip(calls, states, strict=False))


def first(value: Any) -> Any:
    """The first tensor of a module's inputs or outputs, which is the hidden state."""
    if isinstance(value, tuple | list):
        return value[0] if value else None
    return value[0] if hasattr(value, "to_tuple") else value


def with_first(value: Any, state: Tensor) -> Any:
    """A module's output with another hidden state."""
    return type(value)([state, *value[1:]]) if isinstance(value, tuple | list) else state


def same(one: Any, other: Any) -> bool:
    """Whether two values are tensors with the same numbers."""
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
