"""A pretrained text encoder of transformers (DistilBERT, BERT, RoBERTa, any AutoModel) with one linear readout.

Noise enters where words become vectors: a hook on the look-up hands the perturbed embeddings on in place of the clean
ones, before positions and the first normalisation, in whatever way the family goes on from there. Other hooks see
each layer's output as it is computed.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cudt import hub
from cudt.errors import UserError
from cudt.models import LayeredModel, Visit
from cudt.models._anatomy import dissect, first
from cudt.schema import ModelSection
from cudt.tasks import Batch, Task
from cudt.tasks._text import TextClassification


class Config(ModelSection):
    """Which encoder, and where its answer is read."""

    pretrained: str
    """A name of the hub, a folder, or `package:` and a folder inside an installed package."""
    readout: Literal["first", "mean"] = "first"
    """The state of the first token, or the mean over all tokens."""

    @property
    def tokenizer_source(self) -> str:
        return self.pretrained


class Encoder(LayeredModel):
    """An encoder, watched by hooks that do nothing unless `visit_layers` is at work."""

    def __init__(self, encoder: Any, n_classes: int, readout: Literal["first", "mean"]) -> None:
        super().__init__()
        # Its weights would get no gradient: the readout takes its place.
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, n_classes)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        self._pools = readout == "mean"
        # In a tuple, lest they be registered a second time.
        anatomy = dissect(encoder.eval(), _five_tokens())
        self._final_norm = (anatomy.final_norm,)
        self.n_layers = len(anatomy.layers)
        self._inputs = set(inspect.signature(encoder.forward).parameters)
        self._signal: Tensor | None = None
        self._visit: Visit | None = None
        encoder.get_input_embeddings().register_forward_hook(self._look_up)
        for layer in dict.fromkeys(anatomy.layers):
            layer.register_forward_hook(self._leave_layer)

    def _look_up(self, module: nn.Module, given: Any, embeddings: Tensor) -> Tensor:
        return embeddings if self._signal is None else self._signal

    def _leave_layer(self, module: nn.Module, given: Any, state: Any) -> None:
        if self._visit is not None:
            self._visit(first(state))

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.encoder.get_input_embeddings()(batch["input_ids"]), batch["attention_mask"].bool()

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        self._signal, self._visit = signal, visit
        try:
            self.encoder(**{name: value for name, value in batch.items() if name in self._inputs and name != "labels"})
        finally:
            self._signal = self._visit = None

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        norm = self._final_norm[0]
        state = state if norm is None else norm(state)
        if not self._pools:
            return self.head(state[:, 0])
        mask = batch["attention_mask"].unsqueeze(-1)
        return self.head((state * mask).sum(1) / mask.sum(1))


def _five_tokens() -> dict[str, Tensor]:
    """An odd number: what fills up to a window shows that its states have not the length of the text."""
    tokens = torch.arange(5).unsqueeze(0)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def build(config: Config, task: Task, data_root: Path | None) -> Encoder:
    """The encoder for a text task, which was cut into tokens by its tokenizer."""
    if not isinstance(task, TextClassification):
        raise UserError("model encoder reads text in its own tokens: its task must be imdb, mnli or text")
    model = Encoder(hub.load_encoder(config.pretrained, data_root), task.n_classes, config.readout)
    _try_out(model, config, task.max_length)
    return model


@torch.no_grad()
def _try_out(model: Encoder, config: Config, length: int) -> None:
    """Refuse what would fail at the first long text, or could not learn: two texts that differ in their last token."""
    tokens = torch.ones(2, length, dtype=torch.long)
    tokens[:, 1:] += torch.arange(length - 1) % 3
    tokens[1, -1] += 1
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    try:
        last = model.layer_states(model.signal(batch)[0], batch)[-1]
    except (IndexError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"task.max_length = {length}: '{config.pretrained}' cannot read so many tokens ({reason})"
        ) from None
    if config.readout == "first" and torch.equal(last[0, 0], last[1, 0]):
        raise UserError(
            f"model.readout = 'first': the first token of '{config.pretrained}' sees no other; take readout: mean"
        )
