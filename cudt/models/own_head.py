"""`layer_losses`: f_1 … f_L of any model of transformers that has a head, read by that head.

The model runs once while hooks record the outputs of its layers. Then its own code runs again for each layer l < L with
every layer call replaced by a recorded output, the last one by X_l. So final norm, pooler, head and loss are always the
model's own, whatever its family calls them; only embeddings and head are computed more than once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cudt.models.anatomy import dissect, first, with_first
from cudt.models.watched import five_tokens

# Finding the layers takes a forward pass, so each model is dissected once.
_LAYERS: WeakKeyDictionary[nn.Module, tuple[nn.Module, ...]] = WeakKeyDictionary()


def layer_losses(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """The vector f_1 … f_L of a model of transformers on one batch, differentiable in the model's weights.

    f_l is the loss that the model would report if layer l were its last: its own final norm, pooler, head and loss on
    X_l. f_L is the model's own loss. The embedding is not a layer.

    `model` is any model whose forward pass returns `loss` and `hidden_states`, such as `…ForSequenceClassification`,
    `…ForTokenClassification` or `…ForCausalLM`, also wrapped by peft. `batch` holds its keyword arguments, with
    `labels`; labels of −100 are ignored wherever the model's own loss ignores them. The logits of all L layers are kept
    for the backward pass.
    """
    if batch.get("labels") is None:
        raise ValueError("batch has no 'labels', and without them the model computes no loss")
    arguments = dict(batch)
    if "use_cache" in inspect.signature(model.forward).parameters:
        arguments.setdefault("use_cache", False)
    layers = _layers(model, batch)
    outputs, last = _record(model, layers, arguments)
    losses = [
        _replay(model, layers, [*outputs[:-1], with_first(outputs[-1], first(output))], arguments)
        for output in outputs[:-1]
    ]
    return torch.stack([*losses, last])


def _layers(model: nn.Module, batch: Mapping[str, Any]) -> tuple[nn.Module, ...]:
    """The modules whose outputs are X_1 … X_L, found with a small input and without dropout."""
    if model not in _LAYERS:
        if "input_ids" in batch:
            inputs = {name: value.to(batch["input_ids"].device) for name, value in five_tokens().items()}
        else:
            inputs = {
                name: value[:1] for name, value in batch.items() if isinstance(value, Tensor) and name != "labels"
            }
        training = [module for module in model.modules() if module.training]
        try:
            _LAYERS[model] = dissect(model.eval(), inputs).layers
        finally:
            for module in training:
                module.training = True
    return _LAYERS[model]


def _record(model: nn.Module, layers: Sequence[nn.Module], arguments: dict[str, Any]) -> tuple[list[Any], Tensor]:
    """The outputs of all layers in the order of their calls, and the model's own loss."""
    outputs: list[Any] = []
    # Asked here, because reentrant checkpointing turns gradients off inside the layers.
    needs_gradients = torch.is_grad_enabled()

    def record(layer: nn.Module, given: Any, output: Any) -> None:
        if needs_gradients and _is_trained(layer) and not first(output).requires_grad:
            raise ValueError(
                "layer outputs have no gradient inside reentrant gradient checkpointing; call "
                'model.gradient_checkpointing_enable({"use_reentrant": False})'
            )
        outputs.append(output)

    with ExitStack() as stack:
        for layer in dict.fromkeys(layers):
            stack.callback(layer.register_forward_hook(record).remove)
        loss = _loss(model, arguments)
    if len(outputs) != len(layers):
        raise ValueError(
            f"{type(model).__name__} called {len(outputs)} of its {len(layers)} layers; layer losses need all of them: "
            "turn off layerdrop, and do not replace layers after the first call"
        )
    return outputs, loss


def _is_trained(module: nn.Module) -> bool:
    return any(weight.requires_grad for weight in module.parameters())


def _replay(model: nn.Module, layers: Sequence[nn.Module], outputs: list[Any], arguments: dict[str, Any]) -> Tensor:
    """The model's loss when its layers give these outputs, one per call."""
    remaining = iter(outputs)
    with ExitStack() as stack:
        for layer in dict.fromkeys(layers):
            stack.enter_context(_replaced(layer, lambda *given, **named: next(remaining)))
        return _loss(model, arguments)


@contextmanager
def _replaced(layer: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Give a layer another forward pass, one that is not computed again in the backward pass."""
    changes = {"forward": forward, "gradient_checkpointing": False}
    before = {name: layer.__dict__[name] for name in changes if name in layer.__dict__}
    layer.__dict__.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del layer.__dict__[name]
        layer.__dict__.update(before)


def _loss(model: nn.Module, arguments: dict[str, Any]) -> Tensor:
    loss = getattr(model(**arguments), "loss", None)
    if loss is None:
        raise ValueError(f"{type(model).__name__} returns no loss: layer losses need a model with a head")
    return loss
