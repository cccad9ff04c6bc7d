"""The contract of a layered model.

A model of your own is a module that recipes name by its import path. It defines `Config`, the
`model` section of a recipe (a subclass of `ModelSection`), and `build(config, task, data_root)`,
which returns a `LayeredModel`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cudt.config import plugins
from cudt.config.models import PretrainedSection
from cudt.config.schema import ModelSection
from cudt.data import hub
from cudt.data.loader import Batch
from cudt.tasks.base import Task
from cudt.utils.device import survive_torchvision_mismatch

Visit = Callable[[Tensor], object]
"""Reads a layer's state."""


class LayeredModel(nn.Module, ABC):
    """L layers and one readout for all of them: Φ_l(X) = readout(X_l)."""

    n_layers: int
    """L, which comes from the model, not from the recipe."""
    weights_outside_passes: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Inside it, `signal` works outside of a forward pass even if the weights are sharded."""
    signal_is_learned: bool = True
    """Whether training changes the clean signal: yes for embeddings, no for pixels."""

    @abstractmethod
    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The clean signal X that noise is added to, (examples, positions, …), and a mask of
        unpadded positions; the padding of an example follows its other positions.
        """

    @abstractmethod
    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        """Call `visit` with X_1 … X_L as they are computed, and keep none of them. X_L is what the
        plain model hands to its head, or to its final norm if the readout applies that norm.
        """

    @abstractmethod
    def readout(self, state: Tensor, batch: Batch) -> Any:
        """The answer read from one layer's state: a tensor, or `TokenLogits` over a vocabulary."""

    def readout_weights(self) -> list[nn.Parameter]:
        """The weights that only the readout uses; they may have their own learning rate."""
        return []

    def layer_modules(self) -> list[nn.Module]:
        """The modules of the layers, which are compiled and sharded one by one."""
        return []

    def save_pretrained(self, folder: Path) -> str | None:
        """Save the model for transformers or peft, and return lines of Python that load it from
        FOLDER; None if no other library can load it.
        """
        return None

    def layer_states(self, signal: Tensor, batch: Batch) -> list[Tensor]:
        """X_1 … X_L as a list, which keeps all of them in memory."""
        states: list[Tensor] = []
        self.visit_layers(signal, batch, states.append)
        return states


def build_model(config: ModelSection, task: Task, data_root: Path | None) -> LayeredModel:
    """Build the model of a recipe; new weights are drawn from torch's global generator."""
    if "." in config.name:  # from outside; it may import transformers, and with it torchvision
        survive_torchvision_mismatch()
    return plugins.implementation("model", config.name)(config, task, data_root)


def check_model(config: ModelSection, data_root: Path | None) -> None:
    """Refuse a model whose pretrained weights are missing, before data are read."""
    if isinstance(config, PretrainedSection) and config.source is not None:
        hub.check(config.source, data_root)
