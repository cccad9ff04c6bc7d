"""One update of a random Llama over a large vocabulary, as the trainer does it, without data and files."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from cudt.data.batching import TOKEN_COUNTS, Batch
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives.base import make_objective
from cudt.models.causal import Config
from cudt.models.causal_network import Causal
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.lora import Lora
from cudt.tasks.alpaca import Alpaca
from cudt.tasks.base import IGNORED
from cudt.utils.compat import survive_torchvision_mismatch


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model, and the number of tokens that it reads."""

    layers: int
    width: int
    heads: int
    inner: int
    words: int
    tokens: int


class CausalUpdate:
    """A model, an objective and an optimiser; every call is one update on the same batch."""

    def __init__(self, sizes: Sizes, objective: str, lora: bool) -> None:
        torch.manual_seed(0)
        task: Any = Alpaca(dict, SimpleNamespace(pad_token_id=0), sizes.tokens)
        self.layerwise = LayerwiseLosses(_model(sizes, lora), task).train()
        self.descent = LayerwiseDescent(sizes.layers, 0.05, 12.0)
        # Multipliers of 0 would leave all layers but the last without weight, and they would not be back-propagated.
        self.descent._multiplier.weight.data.fill_(1.0)
        self.objective = make_objective(objective, self.descent)
        learned = [weight for weight in self.layerwise.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(learned, lr=1e-4)
        self.batch = _batch(sizes)

    def __call__(self) -> None:
        counts = self.layerwise.task.weights(self.batch)
        gradient = self.objective.gradient(torch.ones(len(self.objective.layers)))
        losses = self.layerwise(self.batch, layers=self.objective.layers, announced=gradient.unsqueeze(1) * counts)
        (gradient @ (losses @ counts) / counts.sum()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _model(sizes: Sizes, lora: bool) -> Causal:
    survive_torchvision_mismatch()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=sizes.words,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
    )
    settings = Config(name="causal", pretrained="random", lora=Lora() if lora else None)
    return Causal(LlamaForCausalLM(config), settings)


def _batch(sizes: Sizes) -> Batch:
    """One example whose every token but the first is to be predicted."""
    tokens = torch.randint(sizes.words, (1, sizes.tokens))
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": torch.cat([tokens[:, 1:], torch.tensor([[IGNORED]])], 1),
        "labelled": torch.arange(sizes.tokens - 1),
        "ids": ["0"],
        TOKEN_COUNTS: [sizes.tokens],
    }
