"""f_1 … f_L of a batch in somebody else's loop: the model runs once, and its own head reads every
layer.

Most heads run again for each layer. Logits over a vocabulary are too large for that: where the head
of a causal language model is one matrix, losses are computed in chunks of tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn

from cudt.models.causal import has_linear_head
from cudt.models.own_head import Recording, anatomy_of, evaluating, recording, unwrapped
from cudt.models.pretrained import first
from cudt.models.vocabulary import TokenLogits, positions
from cudt.tasks.base import IGNORED

Inputs = dict[str, Any]
Loss = Callable[[nn.Module, Inputs], Tensor]
"""The mean loss that a loop computes with a model on a batch."""


class LayerReader:
    """Reads the losses of the layers of a model of transformers, or of peft's wrapper around it."""

    def __init__(self, model: nn.Module, inputs: Inputs, *, in_chunks: bool) -> None:
        """`inputs` are any batch; `in_chunks`: whether its loss is a causal LM's own."""
        self._model, self._anatomy = model, anatomy_of(model, inputs)
        self.n_layers = len(self._anatomy.layers)
        lm: Any = unwrapped(model)
        with evaluating(model):
            is_linear = in_chunks and has_linear_head(lm)
        self.words: nn.Linear | None = lm.get_output_embeddings() if is_linear else None
        """The head over a vocabulary whose logits are computed in chunks; None if all at once."""

    def losses(
        self,
        wrapped: nn.Module,
        inputs: Inputs,
        loss: Loss,
        layers: Sequence[int],
        weights: Tensor | None = None,
    ) -> Tensor:
        """The mean losses of some layers, in order, the last layer's included; `wrapped` is what
        the loop calls. With known `weights`, those of the layers in the objective, a layer of
        weight 0 gets no gradient.
        """
        if list(layers) == [self.n_layers]:
            return loss(wrapped, dict(inputs)).reshape(1)
        run = loss if self.words is None else _without_loss
        with recording(self._model, self._anatomy.layers) as recorded:
            last = run(wrapped, dict(inputs))
        if self.words is not None:
            return self._in_chunks(recorded, self.words, inputs, layers, weights)
        losses = []
        for layer, needed in zip(layers[:-1], _needed(layers, weights), strict=False):
            with torch.set_grad_enabled(needed), recorded.reading(layer):
                losses.append(loss(self._model, dict(inputs)).float())
        return torch.stack([*losses, last])

    def _in_chunks(
        self,
        recorded: Recording,
        words: nn.Linear,
        inputs: Inputs,
        layers: Sequence[int],
        weights: Tensor | None,
    ) -> Tensor:
        """The mean losses of layers over all tokens."""
        labels, norm = targets(inputs, shifted=True).reshape(1, -1), self._anatomy.final_norm
        batch = {"labels": labels, "labelled": positions({"labels": labels})}
        losses = []
        for layer, needed in zip(layers, _needed(layers, weights), strict=True):
            with torch.set_grad_enabled(needed):
                state = first(recorded.states[layer - 1]).flatten(0, 1)[batch["labelled"]]
                logits = TokenLogits(state if norm is None else norm(state), words)
                losses.append(logits.mean_losses(batch))
        return torch.cat(losses)


def _needed(layers: Sequence[int], weights: Tensor | None) -> list[bool]:
    """Which losses need a gradient; the last always does, as distributed training waits for it."""
    nonzero = [True] * len(layers) if weights is None else weights.bool().tolist()
    return [torch.is_grad_enabled() and one for one in [*nonzero[:-1], True]]


def _without_loss(model: nn.Module, inputs: Inputs) -> Tensor:
    """One forward pass of a causal language model, with as few logits as it allows."""
    takes = inspect.signature(unwrapped(model).forward).parameters
    few = {"use_cache": False, "logits_to_keep": 1}
    given = {name: one for name, one in inputs.items() if name != "labels"}
    return model(**{name: one for name, one in few.items() if name in takes} | given).logits


def targets(inputs: Inputs, *, shifted: bool) -> Tensor:
    """The label of each position of a batch; `shifted` if that is the label of the next one."""
    labels = inputs["labels"]
    return F.pad(labels, (0, 1), value=IGNORED)[..., 1:] if shifted else labels


def n_labels(inputs: Inputs, *, shifted: bool) -> Tensor:
    """The number of a batch's labels that count."""
    return (targets(inputs, shifted=shifted) != IGNORED).sum()


def with_some_label(inputs: Inputs, *, shifted: bool) -> Inputs:
    """The batch, with labels of 0 if none of its labels counts, so that its mean is no NaN."""
    has_none = n_labels(inputs, shifted=shifted) == 0
    return inputs | {"labels": inputs["labels"].masked_fill(has_none, 0)}
