"""What the primal side minimises: three ways to make one number of f_1 … f_L."""

from __future__ import annotations

import torch
from torch import Tensor

from cudt.descent import Form, LayerwiseDescent, in_form
from cudt.schema import ObjectiveName


class Objective:
    """J(f) for one of the objectives, and its gradient in f, which is all that back-propagation needs.

    erm           J = f_L
    supervised    J = (f_1 + … + f_L) / L: tells whether the constraints or mere deep supervision did it
    constrained   J = the Lagrangian of layerwise descent; f_L during warm-up

    In the log form f is log f in all three, so that a pair of runs differs in nothing but the objective.
    """

    def __init__(self, name: ObjectiveName, descent: LayerwiseDescent) -> None:
        self.name = name
        self.descent = descent
        self.form: Form = descent.form
        self.warming_up = False

    @property
    def last_only(self) -> bool:
        """Whether the last layer's loss is all that is needed in training."""
        return self.name == "erm"

    @property
    def constrains(self) -> bool:
        """Whether the multipliers are at work."""
        return self.name == "constrained" and not self.warming_up

    def value(self, f: Tensor) -> Tensor:
        """J(f); under `last_only` f holds f_L alone."""
        if self.constrains:
            return self.descent.lagrangian(f)
        return in_form(f, self.form).mean() if self.name == "supervised" else in_form(f[-1], self.form)

    @property
    def gradient_needs_losses(self) -> bool:
        """In the linear form ∂J/∂f is known before f is; in the log form it holds 1/f."""
        return self.form == "log"

    def gradient(self, f: Tensor) -> Tensor:
        """∂J/∂f at f: the weight of each layer's loss in the primal step."""
        f = f.detach().requires_grad_()
        return torch.autograd.grad(self.value(f), f)[0]

    def accumulate_slack_gradient(self, f: Tensor) -> None:
        """∂J/∂u into the slack's `.grad`, for the primal optimiser."""
        if self.constrains and any(True for _ in self.descent.slack_parameters()):
            self.descent.lagrangian(f.detach()).backward()

    def dual_step(self, f: Tensor) -> None:
        if self.constrains:
            self.descent.dual_step(f)
