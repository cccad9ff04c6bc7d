"""Models of transformers, watched by hooks that do nothing unless somebody visits the layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cudt.data.batching import Batch
from cudt.models.anatomy import Anatomy, dissect, first
from cudt.models.base import LayeredModel, Visit


class Watched(LayeredModel):
    """A hook sees each layer's output as it is computed."""

    def __init__(self, anatomy: Anatomy) -> None:
        super().__init__()
        self.n_layers = len(anatomy.layers)
        self._visit: Visit | None = None
        for layer in dict.fromkeys(anatomy.layers):
            layer.register_forward_hook(self._leave_layer)

    @contextmanager
    def _visited_by(self, visit: Visit) -> Iterator[None]:
        self._visit = visit
        try:
            yield
        finally:
            self._visit = None

    def _leave_layer(self, module: nn.Module, given: Any, state: Any) -> None:
        if self._visit is not None:
            self._visit(first(state))


class WatchedText(Watched):
    """Noise enters where words become vectors: a hook on the look-up hands the perturbed embeddings on in place of the
    clean ones, before positions and the first normalisation, in whatever way the family goes on from there.
    """

    def __init__(self, backbone: Any, **always: Any) -> None:
        """`always` is what the backbone is told besides its batch."""
        anatomy = dissect(backbone.eval(), five_tokens())
        super().__init__(anatomy)
        # In tuples, lest they be registered: a subclass holds them by the names that its weights are saved under.
        self._backbone = (backbone,)
        self._final_norm = (anatomy.final_norm,)
        self._always = always
        self._inputs = set(inspect.signature(backbone.forward).parameters)
        self._replace: Callable[[Tensor], Tensor] | None = None
        backbone.get_input_embeddings().register_forward_hook(self._look_up)

    def _look_up(self, module: nn.Module, given: Any, embeddings: Tensor) -> Tensor:
        return embeddings if self._replace is None else self._replace(embeddings)

    @contextmanager
    def replacing(self, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Hand `replace(embeddings)` on in place of every embedding that is looked up."""
        self._replace = replace
        try:
            yield
        finally:
            self._replace = None

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._backbone[0].get_input_embeddings()(batch["input_ids"]), batch["attention_mask"].bool()

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        inputs = {name: value for name, value in batch.items() if name in self._inputs and name != "labels"}
        with self._visited_by(visit), self.replacing(lambda clean: signal):
            self._backbone[0](**inputs, **self._always)

    def normed(self, state: Tensor) -> Tensor:
        """A pre-norm model's last norm belongs to the readout, and is applied at every layer."""
        norm = self._final_norm[0]
        return state if norm is None else norm(state)


def five_tokens() -> dict[str, Tensor]:
    """An odd number: what fills up to a window shows that its states have not the length of the text."""
    tokens = torch.arange(5).unsqueeze(0)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
