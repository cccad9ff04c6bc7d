"""The networks of models whose own head reads every layer (headed.py)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cudt.data import remote_code
from cudt.data.batching import Batch
from cudt.data.stored_examples import PIXELS, Kind
from cudt.models.adapters import save_adapters
from cudt.models.anatomy import dissect, with_first
from cudt.models.backbone import unwrapped
from cudt.models.base import Visit
from cudt.models.causal_network import has_linear_head
from cudt.models.own_head import OwnHead, Recorded
from cudt.models.watched import Watched, WatchedText, five_tokens
from cudt.noise.source import SignalShape
from cudt.tasks.labelled import positions
from cudt.tasks.token_logits import DenseLogits, TokenLogits

#: Python code that loads what `save_pretrained` wrote, with class `loader` of `library`.
_SNIPPET = """\
from {library} import {loader}
model = {loader}.from_pretrained("FOLDER", trust_remote_code={trusts})
"""


class HeadReadout:
    """The head of a model as the readout of any state; it keeps the model itself, but is no part of it."""

    def __init__(self, model: Any, inputs: dict[str, Tensor]) -> None:
        """`inputs` are a small batch, with which the layers and the head are found."""
        self._model = model
        self._names = set(inspect.signature(unwrapped(model).forward).parameters) - {"labels"}
        self.own = OwnHead(model, inputs)
        with torch.no_grad(), self.own.recording(model) as self._small:
            model(**inputs)

    def logits(self, state: Tensor, batch: Batch) -> Tensor:
        """What the model answers if its last layer gives `state`."""
        # The other layers are not looked at: everything before the last state is replaced.
        outputs = [with_first(one, state) for one in self._small.outputs]
        inputs = {name: value for name, value in batch.items() if name in self._names}
        with self.own.reading(Recorded(outputs, self._small.backbone), self.own.n_layers):
            return self._model(**inputs).logits

    def weights(self) -> list[nn.Parameter]:
        """The trained weights that only the head and the pooler use."""
        inner: Any = unwrapped(self._model)
        backbone = self.own.backbone
        pooled = set() if backbone is None or backbone.pooler is None else set(backbone.pooler.parameters())
        body = set(inner.base_model.parameters()) - pooled
        return [weight for weight in self._model.parameters() if weight.requires_grad and weight not in body]

    def save(self, folder: Path) -> str:
        """Save the model for transformers, or its adapter for peft; returns Python code that loads it."""
        inner: Any = unwrapped(self._model)
        trusts = remote_code.runs_in(inner)
        name = type(inner).__name__
        if inner is self._model:
            self._model.save_pretrained(folder)
            return _SNIPPET.format(library="transformers", loader=_auto_class(name), trusts=trusts)
        save_adapters(self._model, folder)
        loader = _auto_class(name).replace("AutoModel", "AutoPeftModel")
        return _SNIPPET.format(library="peft", loader=loader, trusts=trusts)


def _auto_class(name: str) -> str:
    """AutoModelForTokenClassification for BertForTokenClassification."""
    _, found, head = name.partition("For")
    return f"AutoModel{found}{head}"


class HeadedText(WatchedText):
    """A model of texts; `headed` is the model with its head, wrapped by peft if it has an adapter."""

    def __init__(self, headed: Any, kind: Kind) -> None:
        inner: Any = unwrapped(headed)
        takes_cache = "use_cache" in inspect.signature(inner.base_model.forward).parameters
        super().__init__(inner.base_model, **({"use_cache": False} if takes_cache else {}))
        self.headed = headed
        self._kind = kind
        self._head = HeadReadout(headed, five_tokens())
        is_linear = kind == "causal" and has_linear_head(inner)
        # In a tuple, so that it is not registered twice.
        self._linear: tuple[nn.Linear] | None = (inner.get_output_embeddings(),) if is_linear else None
        self.signal_is_learned = any(weight.requires_grad for weight in self._table.parameters())

    @property
    def _table(self) -> Any:
        return self._backbone[0].get_input_embeddings()

    @property
    def n_embeddings(self) -> int:
        """The size of the vocabulary."""
        return self._table.num_embeddings

    def name_classes(self, names: Sequence[str]) -> None:
        """Store the names of the classes with the saved model."""
        config: Any = unwrapped(self.headed).config
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}

    def readout(self, state: Tensor, batch: Batch) -> Tensor | TokenLogits | DenseLogits:
        """The logits of the example, or those at the tokens with a label, in order."""
        if self._linear is not None:
            return TokenLogits(self.normed(state.flatten(0, 1)[positions(batch)]), self._linear[0])
        with self._not_watching():
            logits = self._head.logits(state, batch)
        return logits if self._kind == "sequence" else DenseLogits(logits.flatten(0, 1)[positions(batch)])

    @contextmanager
    def _not_watching(self) -> Iterator[None]:
        """Let hooks do nothing: the head is read inside a forward pass, and may run parts of the model again."""
        before = self._visit, self._replace, self._narrowing
        self._visit, self._replace, self._narrowing = None, None, None
        try:
            yield
        finally:
            self._visit, self._replace, self._narrowing = before

    def readout_weights(self) -> list[nn.Parameter]:
        return self._head.weights()

    def save_pretrained(self, folder: Path) -> str:
        return self._head.save(folder)


class HeadedImages(Watched):
    """A model of images, whose signal are the pixels as its image processor made them."""

    signal_is_learned = False

    def __init__(self, headed: Any, shape: Sequence[int]) -> None:
        inner: Any = unwrapped(headed)
        small = {PIXELS: torch.zeros(1, *shape, dtype=inner.dtype)}
        super().__init__(dissect(inner.base_model.eval(), small))
        self._backbone = (inner.base_model,)
        self.headed = headed
        self._head = HeadReadout(headed, small)

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The pixels as one position, and no padding."""
        pixels = batch[PIXELS].unsqueeze(1)
        return pixels, pixels.new_ones(pixels.shape[:2], dtype=torch.bool)

    def signal_shape(self, batch: Batch) -> SignalShape:
        pixels = batch[PIXELS]
        return SignalShape([1] * len(pixels), 1, tuple(pixels.shape[1:]), pixels.dtype)

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        with self._visited_by(visit):
            self._backbone[0](pixel_values=signal.squeeze(1))

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        visit, self._visit = self._visit, None
        try:
            return self._head.logits(state, batch)
        finally:
            self._visit = visit

    def readout_weights(self) -> list[nn.Parameter]:
        return self._head.weights()

    def save_pretrained(self, folder: Path) -> str:
        return self._head.save(folder)
