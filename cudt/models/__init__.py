"""The contract of a layered model. A new model is one file beside this one.

The file's name is the model's name in a recipe. It holds `Config`, its section of a recipe, and
`build(config, task)`, which returns a `LayeredModel`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor, nn

from cudt import registry
from cudt.compat import survive_torchvision_mismatch
from cudt.schema import NamedSection
from cudt.tasks import Batch, Task


class LayeredModel(nn.Module, ABC):
    """L layers and one readout that serves them all: Φ_l(X) = readout(X_l)."""

    n_layers: int
    """L, read off the model."""

    @abstractmethod
    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The clean input X that noise is added to, (examples, positions, …), and which positions are real."""

    @abstractmethod
    def layer_states(self, signal: Tensor, batch: Batch) -> Iterator[Tensor]:
        """X_1 … X_L, the embedding excluded; the last is what the plain model would hand its head."""

    @abstractmethod
    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        """The answer read from one layer's state."""


def build(config: NamedSection, task: Task) -> LayeredModel:
    """The model that a recipe names, with weights drawn from torch's current seed."""
    survive_torchvision_mismatch()
    return registry.load("model", config.name).build(config, task)
