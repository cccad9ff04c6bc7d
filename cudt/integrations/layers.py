"""f_1 … f_L of a batch in somebody else's loop: the model runs once, and its own head reads every
layer.

Most heads run again for each layer. Logits over a vocabulary are too large for that: where the head
of a causal language model is one linear map, losses are computed in chunks of tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn

from cudt.models.backbone import unwrapped
from cudt.models.causal_network import has_linear_head
from cudt.models.own_head import Recorded, evaluating, own_head
from cudt.tasks.base import IGNORED
from cudt.tasks.head_gradient import HeadGradient
from cudt.tasks.labelled import Labelled, positions
from cudt.tasks.token_logits import TokenLogits

Inputs = dict[str, Any]
Loss = Callable[[nn.Module, Inputs], Tensor]
"""The mean loss that a loop computes with a model on a batch."""
Autocast = Callable[[], AbstractContextManager[Any]]


class LayerReader:
    """Reads the losses of a model's layers: a model of transformers, or peft's wrapper around it."""

    def __init__(
        self, model: nn.Module, inputs: Inputs, autocast: Autocast, *, in_chunks: bool
    ) -> None:
        """Find the layers with a batch, and try the head; `in_chunks`: whether the loss is the
        plain one of a causal language model.
        """
        self._model, self._autocast = model, autocast
        lm: Any = unwrapped(model)
        with evaluating(model):
            self._head = own_head(model, inputs)
            is_linear = in_chunks and self._head.backbone is not None and has_linear_head(lm)
        self.words: nn.Linear | None = lm.get_output_embeddings() if is_linear else None
        """The head over a vocabulary whose logits are computed in chunks; None if all at once."""

    @property
    def n_layers(self) -> int:
        """L."""
        return self._head.n_layers

    def losses(
        self,
        wrapped: nn.Module,
        inputs: Inputs,
        loss: Loss,
        layers: Sequence[int],
        weights: Tensor | None = None,
    ) -> Tensor:
        """The mean losses of some layers, in order, the last layer's included; `wrapped` is what
        the loop calls.

        `weights` are those of the layers in the objective, if they are known: a layer of weight 0
        has no gradient, which is cheaper.
        """
        if list(layers) == [self.n_layers]:
            return loss(wrapped, dict(inputs)).reshape(1)
        known = torch.ones(len(layers)) if weights is None else weights
        needs = [torch.is_grad_enabled() and bool(weight) for weight in known]
        # Distributed training waits for the gradients of all weights, even if they are 0.
        needs[-1] = torch.is_grad_enabled()
        if self.words is not None:
            with self._head.recording(self._model) as recorded:
                self._run(wrapped, inputs)
            return self._in_chunks(recorded, inputs, list(zip(layers, needs, strict=True)), weights)
        with self._head.recording(self._model) as recorded:
            last = loss(wrapped, dict(inputs))
        losses = []
        for layer, needed in zip(layers[:-1], needs, strict=False):
            reading = self._head.reading(recorded, layer)
            with torch.set_grad_enabled(needed), self._autocast(), reading:
                losses.append(loss(self._model, dict(inputs)).float())
        return torch.stack([*losses, last])

    def _run(self, model: nn.Module, inputs: Inputs) -> None:
        """One forward pass without a loss, and with as few logits as the model allows."""
        given = {name: one for name, one in inputs.items() if name not in _LABELS}
        takes = inspect.signature(unwrapped(model).forward).parameters
        few = {"use_cache": False, "logits_to_keep": 1}
        model(**{**{name: one for name, one in few.items() if name in takes}, **given})

    def _in_chunks(
        self,
        recorded: Recorded,
        inputs: Inputs,
        layers: Sequence[tuple[int, bool]],
        weights: Tensor | None,
    ) -> Tensor:
        """The mean losses over all labelled tokens, with ∂J/∂head if the weights are known."""
        assert self.words is not None
        assert self._head.backbone is not None
        batch, norm = {"labels": _next_tokens(inputs)}, self._head.backbone.final_norm
        labelled = Labelled.of(batch)
        counts = labelled.counts.float()
        gradient = None
        if weights is not None:
            gradient = HeadGradient(weights.to(counts.device).unsqueeze(1) * counts)
        losses = []
        for row, (layer, needs_gradient) in enumerate(layers):
            with torch.set_grad_enabled(needs_gradient):
                with self._autocast():
                    state = recorded.state(layer).flatten(0, 1)[positions(batch)]
                    logits = TokenLogits(state if norm is None else norm(state), self.words)
                if gradient is not None:
                    logits = logits.adding_to(gradient, row)
                losses.append(logits.mean_losses(labelled))
        by_example = torch.stack(losses)
        if gradient is not None:
            by_example = gradient.attach(by_example)
        return by_example @ counts / counts.sum()


# ---------------------------------------------------------------- labels

_LABELS = ("labels", "shift_labels")


def n_labels(inputs: Inputs, *, shifted: bool) -> Tensor:
    """The number of a batch's labels that count; `shifted` if the label of a position is that of
    the next one.
    """
    labels = inputs.get("shift_labels")
    if labels is None:
        labels = inputs["labels"][..., 1:] if shifted else inputs["labels"]
    return (labels != IGNORED).sum()


def with_some_label(inputs: Inputs, *, shifted: bool) -> Inputs:
    """The batch, with labels of 0 if none of its labels counts: its mean loss, which counts 0
    times, is then no NaN.
    """
    has_none = n_labels(inputs, shifted=shifted) == 0
    given = {name: inputs[name] for name in _LABELS if inputs.get(name) is not None}
    filled = {name: one.masked_fill(has_none, 0) for name, one in given.items()}
    return {**inputs, **filled}


def _next_tokens(inputs: Inputs) -> Tensor:
    """At each position, the token that a causal language model should predict there."""
    if inputs.get("shift_labels") is not None:
        return inputs["shift_labels"]
    return F.pad(inputs["labels"], (0, 1), value=IGNORED)[..., 1:]
