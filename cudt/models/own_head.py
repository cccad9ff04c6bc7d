"""`layer_losses`: f_1 … f_L of any model of transformers that has a head, read by that head.

The model runs once while the outputs of its modules are recorded. For each layer l < L its own code
then runs again with what was recorded in place of the embeddings and layers, the last layer's being
X_l: final norm, pooler, head and loss are always the model's own, whatever its family calls them,
and nothing before them is computed twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cudt.models.pretrained import FIVE_TOKENS, Anatomy, dissect, first, hooked

#: Each model is dissected once. An anatomy knows the modules of a model, but not the model itself,
#: so it does not keep it alive.
_KNOWN: WeakKeyDictionary[nn.Module, Anatomy] = WeakKeyDictionary()


def layer_losses(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """The vector f_1 … f_L of a model of transformers on one batch, differentiable in the model's
    weights.

    f_l is the loss that the model would report if layer l were its last: its own final norm,
    pooler, head and loss on X_l. f_L is the model's own loss. The embedding is not a layer.

    `model` is any model that returns `loss` and `hidden_states`, such as `…ForCausalLM` or
    `…ForSequenceClassification`, also wrapped by peft. `batch` holds its keyword arguments, with
    `labels`. The logits of all L layers are kept for the backward pass.
    """
    if batch.get("labels") is None:
        raise ValueError("batch has no 'labels', and without them the model computes no loss")
    arguments = dict(batch)
    if "use_cache" in inspect.signature(model.forward).parameters:
        arguments.setdefault("use_cache", False)
    with recording(model, anatomy_of(model, batch).layers) as recorded:
        last = model(**arguments).loss
    losses = []
    for number in range(1, len(recorded.layers)):
        with recorded.reading(number):
            losses.append(model(**arguments).loss)
    return torch.stack([*losses, last])


def anatomy_of(model: nn.Module, inputs: Mapping[str, Any]) -> Anatomy:
    """The layers and the final norm of a model; `inputs` are any batch that it reads."""
    if model not in _KNOWN:
        given = {name: one for name, one in inputs.items() if isinstance(one, Tensor)}
        if "input_ids" in given:
            small = {name: one.to(given["input_ids"].device) for name, one in FIVE_TOKENS.items()}
        else:
            small = {name: one[:1] for name, one in given.items() if name != "labels"}
        with evaluating(model):
            _KNOWN[model] = dissect(model, small)
    return _KNOWN[model]


@dataclass
class Recording:
    """What the modules of a model gave in one forward pass."""

    layers: tuple[nn.Module, ...]
    states: list[Any] = field(default_factory=list)
    """The outputs of the layers, in order."""
    before: dict[nn.Module, list[Any]] = field(default_factory=dict)
    """The outputs of modules that are called only before the first layer."""

    @contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Inside it, a forward pass of the model is its head on X_number, whatever its inputs."""
        *others, last = self.states
        state = first(self.states[number - 1])
        read = type(last)([state, *last[1:]]) if isinstance(last, tuple | list) else state
        layers = iter([*others, read])
        with ExitStack() as stack:
            for layer in dict.fromkeys(self.layers):
                stack.enter_context(_giving(layer, layers))
            for module, outputs in self.before.items():
                stack.enter_context(_giving(module, iter(outputs)))
            yield


@contextmanager
def recording(model: nn.Module, layers: tuple[nn.Module, ...]) -> Iterator[Recording]:
    """Record one forward pass of a model."""
    recorded, after = Recording(layers), set()
    inside = {part for layer in layers for part in layer.modules()} - {*layers}

    def record(module: nn.Module, given: Any, output: Any) -> None:
        if module in layers:
            recorded.states.append(output)
        elif recorded.states:
            after.add(module)
        else:
            recorded.before.setdefault(module, []).append(output)

    with hooked((one for one in model.modules() if one not in inside), record):
        yield recorded
    for module in after:
        recorded.before.pop(module, None)
    if len(recorded.states) != len(layers):
        raise ValueError(
            f"the model called {len(recorded.states)} of its {len(layers)} layers, and layer "
            "losses need all of them; turn off layerdrop"
        )


@contextmanager
def _giving(module: nn.Module, outputs: Iterator[Any]) -> Iterator[None]:
    """A module that gives these outputs, one a call, and computes nothing."""
    # Checkpointing would compute a layer again in the backward pass.
    changes = {"forward": lambda *_, **__: next(outputs), "gradient_checkpointing": False}
    before = {name: module.__dict__[name] for name in changes if name in module.__dict__}
    module.__dict__.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del module.__dict__[name]
        module.__dict__.update(before)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode; afterwards each module is in its own mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def unwrapped(model: nn.Module) -> nn.Module:
    """The model of transformers inside peft's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
