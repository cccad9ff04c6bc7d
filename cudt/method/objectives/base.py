"""The contract of an objective: one number J(f_1 … f_L) that the primal side minimises.

A new objective is one file beside this one, which holds `OBJECTIVE`, a class. The file's name is the objective's name
in a recipe. In the log form f is log f in every objective, so that a pair of runs differs in nothing but the objective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from cudt.config import registry

if TYPE_CHECKING:
    # Reports ask for labels and styles alone, and should not wait for torch.
    import numpy as np
    from torch import Tensor

    from cudt.method.descent import LayerwiseDescent


class Objective(ABC):
    """J(f), and its gradient in f, which is all that back-propagation needs."""

    label: ClassVar[str]
    """What tables and figures call it."""
    style: ClassVar[dict[str, Any]]
    """How Matplotlib draws its lines: color, linestyle, marker."""
    card: ClassVar[str]
    """What a model card says about such a run; a Jinja template that is given `info`, the run's run.json."""
    is_constrained: ClassVar[bool] = False
    """Whether the run promises to keep the constraints; then its best epoch is one that keeps them."""
    reads_all_layers: ClassVar[bool] = True
    """Whether an update reads more than the last layer."""

    def __init__(self, name: str, descent: LayerwiseDescent, sample_size: int | None = None) -> None:
        self.name = name
        self.descent = descent
        self.warming_up = False
        self._sample_size = sample_size
        self._sampled: list[int] | None = None

    @abstractmethod
    def value(self, f: Tensor) -> Tensor:
        """J(f), where f holds the losses of `layers`."""

    @property
    @abstractmethod
    def layers(self) -> list[int]:
        """The layers whose losses this update needs, in order; the last is always one of them."""

    @property
    def constrains(self) -> bool:
        """Whether the multipliers take part in this update."""
        return self.is_constrained and not self.warming_up

    def dual_step(self, f: Tensor) -> None:
        """Move the multipliers; nothing for an objective that has none."""

    def accumulate_slack_gradient(self, f: Tensor) -> None:
        """∂J/∂u into the slack's `.grad`, for the primal optimiser; nothing for an objective without slack."""

    def draw(self, generator: np.random.Generator) -> None:
        """Choose k of the L constraints (of `supervised`: layers) for one update, where the recipe asks for that.

        Each is chosen with probability k/L and counts L/k times, so that J and the dual gradient are right on average.
        """
        n_layers = self.descent.n_layers
        if self._sample_size is not None and self._sample_size < n_layers:
            chosen = generator.choice(n_layers, self._sample_size, replace=False) + 1
            self._sampled = sorted(chosen.tolist())

    @property
    def constraints(self) -> list[int]:
        """The layers whose constraints this update looks at."""
        return self._sampled or list(range(1, self.descent.n_layers + 1))

    @property
    def gradient_needs_losses(self) -> bool:
        """In the linear form ∂J/∂f is known before f is; in the log form it holds 1/f."""
        return self.descent.form == "log"

    def gradient(self, f: Tensor) -> Tensor:
        """∂J/∂f at f: the weight of each layer's loss in the primal step."""
        import torch

        f = f.detach().requires_grad_()
        return torch.autograd.grad(self.value(f), f)[0]

    def violations(self, f: Tensor) -> Tensor:
        """g_l for each of `constraints`."""
        return self.descent.violations(self.spread(f))[self.indices(self.constraints)]

    @staticmethod
    def indices(layers: Sequence[int]) -> list[int]:
        """Where layers stand in f_1 … f_L, counted from 0."""
        return [layer - 1 for layer in layers]

    def spread(self, f: Tensor) -> Tensor:
        """f_1 … f_L, with NaN for layers that were not read."""
        import torch

        if len(f) == self.descent.n_layers:
            return f
        full = f.new_full((self.descent.n_layers,), torch.nan)
        return full.index_copy(0, torch.tensor(self.layers, device=f.device) - 1, f)


def objective_class(name: str) -> type[Objective]:
    """The class of an objective by its name."""
    return registry.load("objective", name).OBJECTIVE


def make_objective(name: str, descent: LayerwiseDescent, sample_size: int | None = None) -> Objective:
    """The objective that a recipe names."""
    return objective_class(name)(name, descent, sample_size)
