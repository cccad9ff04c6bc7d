"""The contract of an objective: the number J(f_1 … f_L) that the primal optimiser minimises.

To add an objective, write one file in this folder, or a module of your own that recipes name by its
import path. It defines `OBJECTIVE`, a subclass of `Objective`. The name of the file is the
objective's name in a recipe. With descent.form = log, every objective uses log f in place of f, so
two runs differ in nothing but the objective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from cudt.config import plugins
from cudt.utils.autocast import without_autocast

if TYPE_CHECKING:
    # Reports need only labels and styles, and should not wait for torch.
    from torch import Tensor

    from cudt.method.descent import LayerwiseDescent
    from cudt.method.measurement import Measurement


class Objective(ABC):
    """J(f) and its gradient in f, which is all that back-propagation needs."""

    label: ClassVar[str]
    """Its name in tables and figures."""
    style: ClassVar[dict[str, Any]]
    """Line style for Matplotlib: color, linestyle, marker."""
    card: ClassVar[str]
    """The paragraph of the model card about the objective: a Jinja template with `info`, the
    contents of run.json."""
    is_constrained: ClassVar[bool] = False
    """Whether the constraints are part of the objective."""
    reads_all_layers: ClassVar[bool] = True
    """Whether an update reads more than the last layer."""

    def __init__(self, name: str, descent: LayerwiseDescent) -> None:
        self.name = name
        self.descent = descent
        self.warming_up = False

    @abstractmethod
    def value(self, f: Tensor) -> Tensor:
        """J(f), where f holds the losses of `layers`."""

    @property
    def layers(self) -> list[int]:
        """The layers whose losses an update needs, in order."""
        n_layers = self.descent.n_layers
        return list(range(1, n_layers + 1)) if self.reads_all_layers else [n_layers]

    @property
    def constrains(self) -> bool:
        """Whether this update uses the multipliers."""
        return self.is_constrained and not self.warming_up

    def dual_step(self, f: Tensor) -> None:  # noqa: B027  (optional: most objectives have no multipliers)
        """Update the multipliers; does nothing unless overridden."""

    def accumulate_slack_gradient(self, f: Tensor) -> None:  # noqa: B027  (optional: as above)
        """Add ∂J/∂u to the slack's `.grad`, for the primal optimiser; does nothing unless
        overridden.
        """

    def rank(self, measured: Measurement) -> list[float]:
        """The rank of an epoch on validation data: lower is better, compared from left to right.

        It chooses the best epoch. Unless overridden, it is J(f).
        """
        return [self.value(measured.layer_losses[self.indices(self.layers)]).item()]

    @property
    def gradient_needs_losses(self) -> bool:
        """Whether ∂J/∂f depends on f: not in the linear form, but in the log form, where it
        contains 1/f.
        """
        return self.descent.form == "log"

    def gradient(self, f: Tensor) -> Tensor:
        """∂J/∂f at f: the weight of each layer's loss in the primal step."""
        import torch

        f = f.detach().requires_grad_()
        with without_autocast(f.device):
            return torch.autograd.grad(self.value(f), f)[0]

    @staticmethod
    def indices(layers: Sequence[int]) -> list[int]:
        """The positions of layers in the vector f_1 … f_L, counted from 0."""
        return [layer - 1 for layer in layers]


def objective_class(name: str) -> type[Objective]:
    """The class of an objective, by its name in a recipe."""
    return plugins.implementation("objective", name)


def make_objective(name: str, descent: LayerwiseDescent) -> Objective:
    """The objective of a name in a recipe."""
    return objective_class(name)(name, descent)
