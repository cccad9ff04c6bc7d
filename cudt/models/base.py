"""The contract of a layered model.

To add a model, write one file in this folder, or a module of your own that recipes name by its
import path. It defines `Config`, the `model` section of a recipe (a subclass of `ModelSection`),
and `build(config, task, data_root)`, which returns a `LayeredModel`. Optionally it defines
`check(config, task_config, data_root)`, which raises a UserError for whatever is wrong before the
task's data are read. The name of the file is the model's name in a recipe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cudt.config import plugins
from cudt.config.schema import ModelSection
from cudt.data.loader import Batch, lengths_of, to_device
from cudt.noise import SignalShape
from cudt.tasks.base import Task
from cudt.utils.compat import survive_torchvision_mismatch

Visit = Callable[[Tensor], object]
"""Reads a layer's state."""


class LayeredModel(nn.Module, ABC):
    """L layers and one readout for all of them: Φ_l(X) = readout(X_l)."""

    n_layers: int
    """L, which comes from the model, not from the recipe."""
    weights_outside_passes: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Inside it, `signal` can be computed outside of a forward pass, also if the weights are
    sharded."""
    signal_is_learned: bool = True
    """Whether training changes the clean signal: yes for embeddings, no for pixels."""

    @abstractmethod
    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The clean signal X that noise is added to, (examples, positions, …), and a mask of
        unpadded positions.

        The padding of an example follows its other positions.
        """

    @torch.no_grad()
    def signal_shape(self, batch: Batch) -> SignalShape:
        """The shape of the signal of a batch, which noise is drawn for.

        Override it where the shape is known without computing the signal: this waits for the
        device, and reads the mask on it.
        """
        with self.weights_outside_passes():
            signal, mask = self.signal(to_device(batch, next(self.parameters()).device))
        return SignalShape(
            mask.sum(1).tolist(), signal.shape[1], tuple(signal.shape[2:]), signal.dtype
        )

    @abstractmethod
    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        """Call `visit` with X_1 … X_L as they are computed, without the embedding, and keep none of
        them.

        X_L must be exactly the state that the plain model would hand to its head (or to its final
        norm, if the readout applies that norm).
        """

    @abstractmethod
    def readout(self, state: Tensor, batch: Batch) -> Any:
        """The answer read from one layer's state: a tensor, or `TokenLogits` if a tensor would be
        too large.
        """

    def readout_weights(self) -> list[nn.Parameter]:
        """The weights that only the readout uses, which may have a learning rate of their own; by
        default none.
        """
        return []

    def layer_modules(self) -> list[nn.Module]:
        """The modules of the layers, which can be compiled and sharded one by one; by default
        none.
        """
        return []

    def save_pretrained(self, folder: Path) -> str | None:
        """Save the model for transformers or peft; returns lines of Python that load it, with
        FOLDER for the folder.

        Saves nothing and returns None for a model that no other library can load.
        """
        return None

    def layer_states(self, signal: Tensor, batch: Batch) -> list[Tensor]:
        """X_1 … X_L as a list, which keeps all of them in memory."""
        states: list[Tensor] = []
        self.visit_layers(signal, batch, states.append)
        return states


def embedded_shape(batch: Batch, embedding: nn.Embedding) -> SignalShape:
    """The shape of a batch of token embeddings, (examples, tokens, width)."""
    tokens, width = batch["input_ids"].shape[1], embedding.embedding_dim
    return SignalShape(lengths_of(batch), tokens, (width,), embedding.weight.dtype)


def build_model(config: ModelSection, task: Task, data_root: Path | None) -> LayeredModel:
    """Build the model of a recipe; new weights are drawn from torch's global generator."""
    # cudt's own pretrained models come through data/hub.py, which calls it; the others do not need
    # torchvision.
    if "." in config.name:
        survive_torchvision_mismatch()
    return plugins.implementation("model", config.name)(config, task, data_root)
