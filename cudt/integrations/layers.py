"""f_1 … f_L of a batch in somebody else's loop: the model runs once, and its own head reads every
layer.

Most heads run again for each layer. Logits over a vocabulary are too large for that: where the head
of a causal language model is one linear map, losses are computed in chunks of tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn

from cudt.models.causal import has_linear_head
from cudt.models.own_head import anatomy_of, evaluating, reading, recording, unwrapped
from cudt.models.pretrained import first
from cudt.models.vocabulary import HeadGradient, TokenLogits, positions
from cudt.tasks.base import IGNORED

Inputs = dict[str, Any]
Loss = Callable[[nn.Module, Inputs], Tensor]
"""The mean loss that a loop computes with a model on a batch."""
_LABELS = ("labels", "shift_labels")


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
        the loop calls.

        `weights` are those of the layers in the objective, if they are known: a layer of weight 0
        has no gradient, which is cheaper.
        """
        if list(layers) == [self.n_layers]:
            return loss(wrapped, dict(inputs)).reshape(1)
        known = [1.0] * len(layers) if weights is None else weights.tolist()
        needs = [torch.is_grad_enabled() and bool(weight) for weight in known]
        run = loss if self.words is None else _without_loss
        with recording(self._anatomy.layers) as outputs:
            last = run(wrapped, dict(inputs))
        if self.words is not None:
            # Distributed training waits for the gradients of all weights, even if they are 0.
            needs[-1] = torch.is_grad_enabled()
            return self._in_chunks(outputs, inputs, layers, needs, weights)
        losses = []
        for layer, needed in zip(layers[:-1], needs, strict=False):
            read = reading(self._anatomy.layers, outputs, layer)
            with torch.set_grad_enabled(needed), read:
                losses.append(loss(self._model, dict(inputs)).float())
        return torch.stack([*losses, last])

    def _in_chunks(
        self,
        outputs: list[Any],
        inputs: Inputs,
        layers: Sequence[int],
        needs: Sequence[bool],
        weights: Tensor | None,
    ) -> Tensor:
        """The mean losses of layers over all tokens, with ∂J/∂head if the weights are known."""
        assert self.words is not None
        labels, norm = targets(inputs, shifted=True).reshape(1, -1), self._anatomy.final_norm
        batch = {"labels": labels, "labelled": positions({"labels": labels})}
        gradient = None
        if weights is not None:
            gradient = HeadGradient(weights.unsqueeze(1).to(labels.device))
        losses = []
        for row, (layer, needed) in enumerate(zip(layers, needs, strict=True)):
            with torch.set_grad_enabled(needed):
                state = first(outputs[layer - 1]).flatten(0, 1)[batch["labelled"]]
                logits = TokenLogits(state if norm is None else norm(state), self.words)
                if gradient is not None:
                    logits = logits.adding_to(gradient, row)
                losses.append(logits.mean_losses(batch))
        return torch.cat(losses)


def _without_loss(model: nn.Module, inputs: Inputs) -> Tensor:
    """One forward pass of a causal language model, with as few logits as it allows."""
    takes = inspect.signature(unwrapped(model).forward).parameters
    few = {"use_cache": False, "logits_to_keep": 1}
    given = {name: one for name, one in inputs.items() if name not in _LABELS}
    return model(**{name: one for name, one in few.items() if name in takes} | given).logits


def targets(inputs: Inputs, *, shifted: bool) -> Tensor:
    """The label of each position of a batch; `shifted` if that is the label of the next one."""
    if inputs.get("shift_labels") is not None:
        return inputs["shift_labels"]
    labels = inputs["labels"]
    return F.pad(labels, (0, 1), value=IGNORED)[..., 1:] if shifted else labels


def n_labels(inputs: Inputs, *, shifted: bool) -> Tensor:
    """The number of a batch's labels that count."""
    return (targets(inputs, shifted=shifted) != IGNORED).sum()


def with_some_label(inputs: Inputs, *, shifted: bool) -> Inputs:
    """The batch, with labels of 0 if none of its labels counts: its mean loss, which counts 0
    times, is then no NaN.
    """
    has_none = n_labels(inputs, shifted=shifted) == 0
    given = {name: inputs[name] for name in _LABELS if inputs.get(name) is not None}
    return inputs | {name: one.masked_fill(has_none, 0) for name, one in given.items()}
