"""`layer_losses`: f_1 … f_L of any model of transformers that has a head, read by that head.

The model runs once while hooks record the outputs of its layers. Then its own code runs again for
each layer l < L, with what comes before the head replaced by what was recorded: final norm, pooler,
head and loss are always the model's own, whatever its family calls them. Where the model has a
backbone whose output can be made from a state (backbone.py), only the head is computed again.
Elsewhere every layer call is replaced by a recorded output, the last one by X_l, and the embeddings
are computed again, too.
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

from cudt.models.anatomy import dissect, first, with_first
from cudt.models.backbone import Backbone, find_backbone, forward_replaced
from cudt.models.watched import five_tokens


@dataclass
class Recorded:
    """What one forward pass gave: the outputs of the layers in the order of their calls, and that
    of the backbone.
    """

    outputs: list[Any] = field(default_factory=list)
    backbone: Any = None

    def state(self, layer: int) -> Tensor:
        """X_l."""
        return first(self.outputs[layer - 1])

    def of_example(self, row: int) -> Recorded:
        """The same for one example of the batch."""
        return Recorded(
            [with_first(one, first(one)[row : row + 1]) for one in self.outputs], self.backbone
        )


class OwnHead:
    """The layers of a model, and its own head as the readout of each of them.

    It knows modules of the model, but not the model itself, so that it can be kept as long as the
    model is.
    """

    def __init__(self, model: nn.Module, inputs: dict[str, Tensor]) -> None:
        """Find the layers with a small input and without dropout; the model is left as it was."""
        with evaluating(model):
            self.layers = dissect(model, inputs).layers
            self.backbone = self._tried(model, find_backbone(model, self.layers, inputs), inputs)

    @property
    def n_layers(self) -> int:
        """L."""
        return len(self.layers)

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[Recorded]:
        """Record the outputs of all layers in one forward pass of a model."""
        recorded = Recorded()
        # Asked here, because reentrant checkpointing turns gradients off inside the layers.
        needs_gradients = torch.is_grad_enabled()

        def record(layer: nn.Module, given: Any, output: Any) -> None:
            if needs_gradients and _is_trained(layer) and not first(output).requires_grad:
                raise ValueError(
                    "layer outputs have no gradient inside reentrant gradient checkpointing; call "
                    'model.gradient_checkpointing_enable({"use_reentrant": False})'
                )
            recorded.outputs.append(output)

        def keep(module: nn.Module, given: Any, output: Any) -> None:
            recorded.backbone = output

        with ExitStack() as stack:
            for layer in dict.fromkeys(self.layers):
                stack.callback(layer.register_forward_hook(record).remove)
            if self.backbone is not None:
                stack.callback(self.backbone.module.register_forward_hook(keep).remove)
            yield recorded
        if len(recorded.outputs) != len(self.layers):
            raise ValueError(
                f"{type(model).__name__} called {len(recorded.outputs)} of its "
                f"{len(self.layers)} layers; layer losses "
                "need all of them: turn off layerdrop, and do not replace layers after the first "
                "call"
            )

    @contextmanager
    def reading(self, recorded: Recorded, layer: int) -> Iterator[None]:
        """Inside it, a forward pass of the model is its head on the state of a layer, whatever its
        inputs.
        """
        state = recorded.state(layer)
        with ExitStack() as stack:
            if self.backbone is not None:
                output = self.backbone.output(recorded.backbone, state)
                stack.enter_context(
                    forward_replaced(self.backbone.module, forward=lambda *given, **named: output)
                )
            else:
                last = with_first(recorded.outputs[-1], state)
                remaining = iter([*recorded.outputs[:-1], last])
                for one in dict.fromkeys(self.layers):
                    # Checkpointing would compute it again in the backward pass.
                    changes = {
                        "forward": lambda *given, **named: next(remaining),
                        "gradient_checkpointing": False,
                    }
                    stack.enter_context(forward_replaced(one, **changes))
            yield

    @torch.no_grad()
    def _tried(
        self, model: nn.Module, found: Backbone | None, inputs: dict[str, Tensor]
    ) -> Backbone | None:
        """A backbone whose head reads every layer as the model itself does with its layers
        replaced; else None.
        """
        if found is None:
            return None
        answers = []
        for self.backbone in (None, found):
            with self.recording(model) as recorded:
                model(**inputs)
            for layer in range(1, self.n_layers + 1):
                with self.reading(recorded, layer):
                    answers.append(first(model(**inputs)))
        slow, quick = answers[: self.n_layers], answers[self.n_layers :]
        is_same = all(torch.allclose(one, other) for one, other in zip(slow, quick, strict=True))
        return found if is_same else None


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


# Finding the layers takes forward passes, so each model is dissected once.
_HEADS: WeakKeyDictionary[nn.Module, OwnHead] = WeakKeyDictionary()


def own_head(model: nn.Module, inputs: Mapping[str, Any]) -> OwnHead:
    """The layers and the head of a model; `inputs` are any batch that it reads."""
    if model not in _HEADS:
        if "input_ids" in inputs:
            device = inputs["input_ids"].device
            small = {name: value.to(device) for name, value in five_tokens().items()}
        else:
            small = {
                name: value[:1]
                for name, value in inputs.items()
                if isinstance(value, Tensor) and name != "labels"
            }
        _HEADS[model] = OwnHead(model, small)
    return _HEADS[model]


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
    head = own_head(model, batch)
    with head.recording(model) as recorded:
        last = _loss(model, arguments)
    losses = []
    for layer in range(1, head.n_layers):
        with head.reading(recorded, layer):
            losses.append(_loss(model, arguments))
    return torch.stack([*losses, last])


def _is_trained(module: nn.Module) -> bool:
    return any(weight.requires_grad for weight in module.parameters())


def _loss(model: nn.Module, arguments: dict[str, Any]) -> Tensor:
    loss = getattr(model(**arguments), "loss", None)
    if loss is None:
        raise ValueError(
            f"{type(model).__name__} returns no loss: layer losses need a model with a head"
        )
    return loss
