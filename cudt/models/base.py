"""The contract of a layered model. A new model is one file beside this one.

The file's name is the model's name in a recipe. It holds `Config`, its section of a recipe (a `ModelSection`), and
`build(config, task, data_root)`, which returns a `LayeredModel`. It may hold `check(config, task_config, data_root)`,
which refuses what can be told before the task's data are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cudt.config import registry
from cudt.config.schema import ModelSection, NamedSection
from cudt.data.batching import Batch
from cudt.tasks.base import Task
from cudt.utils.compat import survive_torchvision_mismatch

Visit = Callable[[Tensor], None]


class LayeredModel(nn.Module, ABC):
    """L layers and one readout that serves them all: Φ_l(X) = readout(X_l)."""

    n_layers: int
    """L, read off the model."""
    signal_is_learned: bool = True
    """Whether training changes the clean input (embeddings) or not (pixels)."""

    @abstractmethod
    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The clean input X that noise is added to, (examples, positions, …), and which positions are real."""

    @abstractmethod
    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        """Hand X_1 … X_L to `visit` as they are computed, the embedding excluded, and keep none of them.

        The last, through the readout, is what the plain model would hand its head.
        """

    @abstractmethod
    def readout(self, state: Tensor, batch: Batch) -> Any:
        """The answer read from one layer's state: a tensor, or `TokenLogits` where it would be too large for one."""

    def save_pretrained(self, folder: Path) -> str | None:
        """Save for transformers or peft alone; returns the lines of Python that load it, with FOLDER for the folder.

        None for a model that no other library knows.
        """
        return None

    def layer_states(self, signal: Tensor, batch: Batch) -> list[Tensor]:
        """X_1 … X_L all at once, for who wants to look at them."""
        states: list[Tensor] = []
        self.visit_layers(signal, batch, states.append)
        return states


def check_model(config: ModelSection, task: NamedSection, data_root: Path | None) -> None:
    """Refuse a pair of sections that cannot go together; reading the data of a task may take an hour."""
    module = registry.load("model", config.name)
    if hasattr(module, "check"):
        module.check(config, task, data_root)


def build_model(config: ModelSection, task: Task, data_root: Path | None) -> LayeredModel:
    """The model that a recipe names, with new weights drawn from torch's current seed."""
    survive_torchvision_mismatch()
    return registry.load("model", config.name).build(config, task, data_root)
