"""What the primal side minimises: three ways to make one number of f_1 … f_L."""

from __future__ import annotations

import numpy as np
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

    def __init__(self, name: ObjectiveName, descent: LayerwiseDescent, sample_size: int | None = None) -> None:
        self.name = name
        self.descent = descent
        self.form: Form = descent.form
        self.warming_up = False
        self._sample_size = sample_size
        self._sampled: list[int] | None = None

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
    def layers(self) -> list[int]:
        """The layers whose losses this update needs: those of its constraints, the ones before them, and the last."""
        last = self.descent.n_layers
        if self.name == "erm":
            return [last]
        if self.name == "supervised":
            # The last one too: processes that train together wait for the gradients of all weights.
            return sorted({*self.constraints, last})
        return sorted({*self.constraints, *(layer - 1 for layer in self.constraints if layer > 1), last})

    @property
    def constrains(self) -> bool:
        """Whether the multipliers are at work."""
        return self.name == "constrained" and not self.warming_up

    def value(self, f: Tensor) -> Tensor:
        """J(f), where f holds the losses of `layers`."""
        if self.constrains:
            return self.descent.lagrangian(self._spread(f), self._sampled)
        if self.name == "supervised":
            return in_form(self._spread(f)[self._places], self.form).mean()
        return in_form(f[-1], self.form)

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
            self.descent.lagrangian(self._spread(f.detach()), self._sampled).backward()

    def dual_step(self, f: Tensor) -> None:
        if self.constrains:
            self.descent.dual_step(self._spread(f), self._sampled)

    def violations(self, f: Tensor) -> Tensor:
        """g_l for each of `constraints`."""
        return self.descent.violations(self._spread(f))[self._places]

    @property
    def _places(self) -> list[int]:
        """Where the layers of `constraints` stand in f_1 … f_L."""
        return [layer - 1 for layer in self.constraints]

    def _spread(self, f: Tensor) -> Tensor:
        """f_1 … f_L, with nothing (NaN) for layers that were not read."""
        if len(f) == self.descent.n_layers:
            return f
        full = f.new_full((self.descent.n_layers,), torch.nan)
        return full.index_copy(0, torch.tensor(self.layers, device=f.device) - 1, f)
