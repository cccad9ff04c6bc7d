"""f_1 … f_L of a batch in somebody else's loop: the model runs once, and its own head reads every
layer.

Most heads are run again for each layer. Logits over a vocabulary are too large for that: where the
head of a causal language model is one linear map, the losses of each layer are computed in chunks
of tokens (models/vocabulary.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn

from cudt.models.causal import has_linear_head
from cudt.models.own_head import anatomy_of, evaluating, reading, recording, unwrapped, with_first
from cudt.models.pretrained import FIVE_TOKENS, first
from cudt.models.vocabulary import HeadGradient, TokenLogits, positions
from cudt.tasks.base import IGNORED
from cudt.utils.errors import UserError

Inputs = dict[str, Any]
Loss = Callable[[nn.Module, Inputs], Tensor]
"""The mean loss that a loop computes with a model on a batch."""
Autocast = Callable[[], AbstractContextManager[Any]]


class LayerReader:
    """Reads the losses of a model's layers; `model` is the model of transformers, or peft's wrapper
    around it.
    """

    def __init__(
        self, model: nn.Module, autocast: Autocast, *, shifted: bool, in_chunks: bool
    ) -> None:
        """`shifted`: whether the loss compares a position with the label of the next one.

        `in_chunks`: whether the loss is the plain one of a causal language model, which can be
        computed in chunks.
        """
        self._model, self._autocast, self._shifted = model, autocast, shifted
        with evaluating(model):
            self.anatomy = anatomy_of(model, _small_inputs(model))
            self._tokens = _token_head(model) if in_chunks else None

    @property
    def n_layers(self) -> int:
        """L."""
        return len(self.anatomy.layers)

    @property
    def reads_in_chunks(self) -> bool:
        """Whether logits are computed in chunks of tokens."""
        return self._tokens is not None

    def losses(
        self,
        wrapped: nn.Module,
        inputs: Inputs,
        loss: Loss,
        layers: Sequence[int],
        weights: Tensor | None,
    ) -> Tensor:
        """The mean losses of some layers, in order, the last layer's included; `wrapped` is what
        the loop calls.

        `weights` are those of the layers in the objective, if they are known. Layers whose weight
        is 0 have no gradient, which is cheaper.
        """
        if list(layers) == [self.n_layers]:
            return loss(wrapped, dict(inputs)).reshape(1)
        if self._tokens is not None:
            with recording(self.anatomy.layers) as recorded:
                self._run(wrapped, inputs)
            return self._token_losses(recorded, inputs, layers, weights)
        with recording(self.anatomy.layers) as recorded:
            last = loss(wrapped, dict(inputs))
        return torch.stack([*self._head_losses(recorded, inputs, loss, layers[:-1], weights), last])

    def example_losses(self, inputs: Inputs, loss: Loss) -> tuple[Tensor, Tensor]:
        """The mean loss of each example at every layer, (layers, examples), and its number of
        labels.
        """
        counts, layers = n_labels(inputs, shifted=self._shifted), range(1, self.n_layers + 1)
        with recording(self.anatomy.layers) as recorded:
            self._run(self._model, inputs)
        if self._tokens is not None:
            labelled = _labelled(inputs)
            read = [
                self._token_logits(recorded, layer, labelled).mean_losses(labelled)
                for layer in layers
            ]
            return torch.stack(read).double(), counts
        rows = []
        for row in range(len(counts)):
            # One by one: a loss is whatever the loop makes of a batch.
            only, own = (
                _row(inputs, row),
                [with_first(one, first(one)[row : row + 1]) for one in recorded],
            )
            rows.append(torch.stack(self._head_losses(own, only, loss, layers, None)))
        return torch.stack(rows, 1).double(), counts

    def _run(self, model: nn.Module, inputs: Inputs) -> None:
        """One forward pass without a loss, and with as few logits as the model allows."""
        parameters = inspect.signature(unwrapped(model).forward).parameters
        known = {"use_cache": False, "logits_to_keep": 1} if self._tokens is not None else {}
        given = {
            name: value for name, value in inputs.items() if name not in ("labels", "shift_labels")
        }
        model(
            **given,
            **{
                name: value
                for name, value in known.items()
                if name in parameters and name not in given
            },
        )

    def _head_losses(
        self,
        recorded: list[Any],
        inputs: Inputs,
        loss: Loss,
        layers: Sequence[int],
        weights: Tensor | None,
    ) -> list[Tensor]:
        losses = []
        for layer, needs_gradient in zip(
            layers, _need_gradients(weights, len(layers)), strict=True
        ):
            with (
                torch.set_grad_enabled(needs_gradient),
                self._autocast(),
                reading(self.anatomy.layers, recorded, layer),
            ):
                losses.append(loss(self._model, dict(inputs)).float())
        return losses

    def _token_losses(
        self, recorded: list[Any], inputs: Inputs, layers: Sequence[int], weights: Tensor | None
    ) -> Tensor:
        batch = _labelled(inputs)
        counts = (batch["labels"] != IGNORED).sum(1).to(torch.float32)
        head = (
            None
            if weights is None
            else HeadGradient(weights.to(counts.device).unsqueeze(1) * counts)
        )
        # Always for the last layer: distributed training waits for the gradients of all weights,
        # even if they are 0.
        needs = [*_need_gradients(weights, len(layers))[:-1], torch.is_grad_enabled()]
        losses = []
        for row, (layer, needs_gradient) in enumerate(zip(layers, needs, strict=True)):
            with torch.set_grad_enabled(needs_gradient):
                logits = self._token_logits(recorded, layer, batch)
                losses.append(
                    (logits if head is None else logits.adding_to(head, row)).mean_losses(batch)
                )
        stacked = torch.stack(losses)
        return stacked @ counts / counts.sum()

    def _token_logits(self, recorded: list[Any], layer: int, batch: Inputs) -> TokenLogits:
        assert self._tokens is not None
        norm = self.anatomy.final_norm
        with self._autocast():
            state = first(recorded[layer - 1]).flatten(0, 1)[positions(batch)]
            return TokenLogits(state if norm is None else norm(state), self._tokens)


def _need_gradients(weights: Tensor | None, n_layers: int) -> list[bool]:
    """Whether each layer needs a gradient: not if its weight is known to be 0."""
    known = [1.0] * n_layers if weights is None else weights.tolist()[:n_layers]
    return [torch.is_grad_enabled() and bool(weight) for weight in known]


def n_labels(inputs: Inputs, *, shifted: bool) -> Tensor:
    """The number of each example's labels that count; `shifted` if the label of a position is that
    of the next one.
    """
    if "shift_labels" in inputs:
        labels = inputs["shift_labels"]
    else:
        labels = inputs["labels"][..., 1:] if shifted else inputs["labels"]
    return (labels != IGNORED).reshape(len(labels), -1).sum(1)


def with_some_label(inputs: Inputs, *, shifted: bool) -> Inputs:
    """The batch, with labels of 0 if none of its labels counts: its mean loss, which counts 0
    times, is then no NaN.
    """
    has_none = n_labels(inputs, shifted=shifted).sum() == 0
    given = {
        name: inputs[name] for name in ("labels", "shift_labels") if inputs.get(name) is not None
    }
    return {
        **inputs,
        **{name: torch.where(has_none, torch.zeros_like(one), one) for name, one in given.items()},
    }


def _labelled(inputs: Inputs) -> Inputs:
    """The labels of a causal batch as cudt has them: at each position, the token that it should
    predict.
    """
    if "shift_labels" in inputs:
        return {"labels": inputs["shift_labels"]}
    return {"labels": F.pad(inputs["labels"], (0, 1), value=IGNORED)[..., 1:]}


def _token_head(model: nn.Module) -> nn.Linear | None:
    """The head, if it is one linear map of the backbone's last state; else None."""
    lm: Any = unwrapped(model)
    is_linear = hasattr(lm, "get_decoder") and has_linear_head(lm)
    return lm.get_output_embeddings() if is_linear else None


def _small_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Inputs with which the layers of a model are found: a few tokens, or a black image."""
    inner: Any = unwrapped(model)
    parameters = inspect.signature(inner.forward).parameters
    if "input_ids" in parameters:
        return {name: value.to(inner.device) for name, value in FIVE_TOKENS.items()}
    size = getattr(inner.config, "image_size", None)
    if "pixel_values" not in parameters or size is None:
        raise UserError(
            f"{type(inner).__name__} reads neither input_ids nor images of a known size "
            "(pixel_values)"
        )
    sides = (size, size) if isinstance(size, int) else tuple(size)
    return {"pixel_values": torch.zeros(1, inner.config.num_channels, *sides, device=inner.device)}


def _row(inputs: Inputs, row: int) -> Inputs:
    size = len(inputs["labels"])
    return {
        name: value[row : row + 1]
        if isinstance(value, Tensor) and value.ndim and len(value) == size
        else value
        for name, value in inputs.items()
    }
