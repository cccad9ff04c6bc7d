"""`layer_losses`: f_1 … f_L of any model of transformers that has a head, read by that head.

The model runs once while its layers' outputs are recorded. For each layer l < L its own code then
runs again with the layers replaced by what was recorded, the last one by X_l: final norm, pooler,
head and loss are always the model's own, whatever its family calls them. Layers are computed once;
what comes before them (the embeddings) is computed for each readout.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cudt.models.pretrained import FIVE_TOKENS, Anatomy, dissect, first, hooked
from cudt.models.vocabulary import is_trained

#: Finding the layers takes forward passes, so each model is dissected once. An anatomy knows the
#: modules of a model, but not the model itself, so it does not keep it alive.
_KNOWN: WeakKeyDictionary[nn.Module, Anatomy] = WeakKeyDictionary()


def layer_losses(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """The vector f_1 … f_L of a model of transformers on one batch, differentiable in the model's
    weights.

    f_l is the loss that the model would report if layer l were its last: its own final norm,
    pooler, head and loss on X_l. f_L is the model's own loss. The embedding is not a layer.

    `model` is any model whose forward pass returns `loss` and `hidden_states`, such as
    `…ForSequenceClassification`, `…ForTokenClassification` or `…ForCausalLM`, also wrapped by peft.
    `batch` holds its keyword arguments, with `labels`; labels of −100 are ignored wherever the
    model's own loss ignores them. The logits of all L layers are kept for the backward pass.
    """
    if batch.get("labels") is None:
        raise ValueError("batch has no 'labels', and without them the model computes no loss")
    arguments = dict(batch)
    if "use_cache" in inspect.signature(model.forward).parameters:
        arguments.setdefault("use_cache", False)

    def loss() -> Tensor:
        found = getattr(model(**arguments), "loss", None)
        if found is None:
            raise ValueError(
                f"{type(model).__name__} returns no loss: layer losses need a model with a head"
            )
        return found

    layers = anatomy_of(model, batch).layers
    with recording(layers) as outputs:
        last = loss()
    losses = []
    for number in range(1, len(layers)):
        with reading(layers, outputs, number):
            losses.append(loss())
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


@contextmanager
def recording(layers: tuple[nn.Module, ...]) -> Iterator[list[Any]]:
    """Record the outputs of all layers in one forward pass of their model, in order."""
    outputs: list[Any] = []
    # Asked here, because reentrant checkpointing turns gradients off inside the layers.
    needs_gradients = torch.is_grad_enabled()

    def record(layer: nn.Module, given: Any, output: Any) -> None:
        if needs_gradients and is_trained(layer) and not first(output).requires_grad:
            raise ValueError(
                "layer outputs have no gradient inside reentrant gradient checkpointing; call "
                'model.gradient_checkpointing_enable({"use_reentrant": False})'
            )
        outputs.append(output)

    with hooked(layers, record):
        yield outputs
    if len(outputs) != len(layers):
        raise ValueError(
            f"the model called {len(outputs)} of its {len(layers)} layers; layer losses need all "
            "of them: turn off layerdrop, and do not replace layers after the first call"
        )


@contextmanager
def reading(layers: tuple[nn.Module, ...], outputs: list[Any], number: int) -> Iterator[None]:
    """Inside it, a forward pass of the model is its head on X_number, whatever its inputs."""
    state = first(outputs[number - 1])
    remaining = iter([*outputs[:-1], with_first(outputs[-1], state)])
    # Checkpointing would compute the layer again in the backward pass.
    changes = {"forward": lambda *given, **named: next(remaining), "gradient_checkpointing": False}
    with ExitStack() as stack:
        for layer in dict.fromkeys(layers):
            stack.enter_context(_changed(layer, changes))
        yield


@contextmanager
def _changed(module: nn.Module, changes: dict[str, Any]) -> Iterator[None]:
    """A module with other attributes for a while."""
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


def with_first(value: Any, state: Tensor) -> Any:
    """A module's output with another hidden state."""
    return type(value)([state, *value[1:]]) if isinstance(value, tuple | list) else state


def unwrapped(model: nn.Module) -> nn.Module:
    """The model of transformers inside peft's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
