"""Models of transformers whose layer states are read by forward hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cudt.data.loader import Batch
from cudt.models.anatomy import Anatomy, dissect, first
from cudt.models.base import LayeredModel, Visit, embedded_shape
from cudt.noise import SignalShape
from cudt.utils.errors import UserError


class Watched(LayeredModel):
    """A model with a hook on each layer, which passes the layer's output on while `visit_layers`
    runs.
    """

    def __init__(self, anatomy: Anatomy) -> None:
        super().__init__()
        self.n_layers = len(anatomy.layers)
        self._visit: Visit | None = None
        # In tuples, so that they are not registered: subclasses register them under the names of
        # saved weights.
        self._layers = (anatomy.layers,)
        self._final_norm = (anatomy.final_norm,)
        for layer in dict.fromkeys(anatomy.layers):
            layer.register_forward_hook(self._leave_layer)

    def layer_modules(self) -> list[nn.Module]:
        """The layers: the model's own code between them, and the hooks that read them, are not
        compiled.
        """
        return list(dict.fromkeys(self._layers[0]))

    def normed(self, state: Tensor) -> Tensor:
        """The state after a pre-norm model's final norm, which belongs to the readout of every
        layer.
        """
        norm = self._final_norm[0]
        return state if norm is None else norm(state)

    @contextmanager
    def _visited_by(self, visit: Visit) -> Iterator[None]:
        self._visit = visit
        try:
            yield
        finally:
            self._visit = None

    def _leave_layer(self, module: nn.Module, given: Any, output: Any) -> None:
        """Visit a layer's state; a hook that returns None leaves the output as it is."""
        if self._visit is not None:
            self._visit(first(output))


class WatchedText(Watched):
    """A text model whose word embeddings can be replaced by noisy ones.

    A hook on the embedding look-up returns the noisy embeddings, before positions and the first
    norm are applied.
    """

    def __init__(self, backbone: Any, **always: Any) -> None:
        """`always` are arguments of the backbone besides its batch."""
        super().__init__(dissect(backbone.eval(), five_tokens()))
        # In a tuple, so that it is not registered: subclasses register it under the name of saved
        # weights.
        self._backbone = (backbone,)
        self._always = always
        self._inputs = set(inspect.signature(backbone.forward).parameters)
        self._replace: Callable[[Tensor], Tensor] | None = None
        backbone.get_input_embeddings().register_forward_hook(self._look_up)

    def _look_up(self, module: nn.Module, given: Any, embeddings: Tensor) -> Tensor:
        return embeddings if self._replace is None else self._replace(embeddings)

    @contextmanager
    def replacing(self, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Replace all embeddings that are looked up by `replace(embeddings)`."""
        self._replace = replace
        try:
            yield
        finally:
            self._replace = None

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._backbone[0].get_input_embeddings()(batch["input_ids"]), batch[
            "attention_mask"
        ].bool()

    def signal_shape(self, batch: Batch) -> SignalShape:
        embedding = self._backbone[0].get_input_embeddings()
        return (
            embedded_shape(batch, embedding)
            if isinstance(embedding, nn.Embedding)
            else super().signal_shape(batch)
        )

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        inputs = {
            name: value
            for name, value in batch.items()
            if name in self._inputs and name != "labels"
        }
        with self._visited_by(visit), self.replacing(lambda clean: signal):
            self._backbone[0](**inputs, **self._always)


@torch.no_grad()
def tried_out(model: LayeredModel, length: int, name: str, setting: str) -> Tensor:
    """The last layer's state of two texts of full length that differ in their last token; refuses
    what would fail.
    """
    tokens = torch.ones(2, length, dtype=torch.long)
    tokens[:, 1:] += torch.arange(length - 1) % 3
    tokens[1, -1] += 1
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    try:
        return model.layer_states(model.signal(batch)[0], batch)[-1]
    except (IndexError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"{setting} = {length}: too many tokens for '{name}' ({reason}); lower {setting}"
        ) from None


def five_tokens() -> dict[str, Tensor]:
    """A text of five tokens: an odd length, which shows if a model pads its states to a window."""
    tokens = torch.arange(5).unsqueeze(0)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
