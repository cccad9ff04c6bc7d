"""The objectives: the number J(f_1 … f_L) that the primal optimiser minimises.

    erm           J = f_L
    supervised    J = (f_1 + … + f_L) / L
    constrained   J = f_L + Σ λ_l·g_l, the Lagrangian, while λ ascends on g

An objective of your own is a module that defines `OBJECTIVE`, a subclass of `Objective`; recipes
name it by its import path. With `form: log` every objective has log f in place of f, so that two
runs differ in nothing but the objective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from cudt.config import plugins
from cudt.method.descent import LayerwiseDescent


class Objective(ABC):
    """J(f) and its gradient in f, which is all that back-propagation needs."""

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

    def select(self, layer_losses: Tensor) -> Tensor:
        """The losses of `layers`, from f_1 … f_L."""
        return layer_losses[[layer - 1 for layer in self.layers]]

    @property
    def gradient_needs_losses(self) -> bool:
        """Whether ∂J/∂f depends on f: in the log form, where it contains 1/f."""
        return self.descent.form == "log"

    def gradient(self, f: Tensor) -> Tensor:
        """∂J/∂f at f: the weight of each layer's loss in the primal step."""
        f = f.detach().requires_grad_()
        with torch.autocast(f.device.type, enabled=False):
            return torch.autograd.grad(self.value(f), f)[0]

    @property
    def constrains(self) -> bool:
        """Whether this update uses the multipliers."""
        return self.is_constrained and not self.warming_up

    def dual_step(self, f: Tensor) -> None:
        """One ascent step of λ on g(f); nothing without constraints."""
        if self.constrains:
            self.descent.dual_step(f)

    def accumulate_slack_gradient(self, f: Tensor) -> None:
        """Add ∂J/∂u to the `.grad` of the slack, for the primal optimiser; nothing without one."""
        if self.constrains and self.descent.trained_slack is not None:
            self.descent.lagrangian(f.detach()).backward()


class Erm(Objective):
    """J = f_L: empirical risk minimisation."""

    reads_all_layers = False

    def value(self, f: Tensor) -> Tensor:
        """f_L, or log f_L in the log form."""
        return self.descent.in_form(f[-1])


class Supervised(Objective):
    """J = (f_1 + … + f_L) / L: deep supervision, a baseline that trains all layers without
    constraints.
    """

    def value(self, f: Tensor) -> Tensor:
        """The mean loss of all layers."""
        return self.descent.in_form(f).mean()


class Constrained(Objective):
    """J = f_L + Σ λ_l·g_l, and J = f_L during warm-up."""

    is_constrained = True

    def value(self, f: Tensor) -> Tensor:
        """The Lagrangian, or f_L during warm-up."""
        return self.descent.lagrangian(f) if self.constrains else self.descent.in_form(f[-1])


def make_objective(name: str, descent: LayerwiseDescent) -> Objective:
    """The objective of a name in a recipe."""
    made: Objective = plugins.implementation("objective", name)(name, descent)
    return made
