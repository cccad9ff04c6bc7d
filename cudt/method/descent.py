"""Layerwise descent as a constrained problem, on Cooper. Usable without the rest of cudt:

    descent = LayerwiseDescent(n_layers=6, alpha=0.1, reference=0.69, dual=Dual(learning_rate=1e-2))
    optimizer = torch.optim.Adam([*model.parameters(), *descent.slack_parameters()])
    for batch in data:
        f = layer_losses(model, batch)           # a vector of length 6, from one forward pass
        optimizer.zero_grad()
        descent.lagrangian(f).backward()         # the primal gradient
        descent.dual_step(f)                     # λ ascends on the same f
        optimizer.step()
        descent.project_slack()                  # only with resilience="slack"

The problem, for layers l = 1 … L, rates α_l and a fixed reference number f_0:

    minimise f_L  subject to  g_l = f_l − (1−α_l)·f_{l−1} ≤ 0             (form="linear")
    minimise log f_L  subject to  g_l = log f_l − log f_{l−1} − log(1−α_l) ≤ 0     (form="log")

Both forms have the same feasible set and the same minimisers; the second does not depend on the loss's scale,
so that one dual learning rate fits cross-entropies and squared pixels alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import cooper
import torch
from torch import Tensor

from cudt.config import registry
from cudt.config.schema import Dual

Form = Literal["linear", "log"]
Resilience = Literal["none", "slack", "decay"]


def rate_for_target(target_loss: float, reference: float, n_layers: int) -> float:
    """The constant α that leads from f_0 to `target_loss` in L steps: 1 − α = (target / f_0)^(1/L)."""
    if not 0 < target_loss < reference:
        raise ValueError(f"the target loss {target_loss:g} must lie between 0 and the reference f_0 = {reference:g}")
    return 1 - (target_loss / reference) ** (1 / n_layers)


def rates_per_layer(alpha: float | Sequence[float], n_layers: int) -> list[float]:
    """α_1 … α_L from one rate for all layers or one for each."""
    rates = [float(alpha)] * n_layers if isinstance(alpha, int | float) else [float(rate) for rate in alpha]
    if len(rates) != n_layers:
        raise ValueError(f"{len(rates)} descent rates for a model of {n_layers} layers")
    if any(not 0 <= rate < 1 for rate in rates):
        raise ValueError(f"descent rates lie in [0, 1), not {rates}")
    return rates


def in_form(losses: Tensor, form: Form) -> Tensor:
    """f itself, or log f; a loss that underflowed to zero counts as the smallest positive number."""
    return losses if form == "linear" else losses.clamp_min(torch.finfo(losses.dtype).tiny).log()


def descent_violations(layer_losses: Tensor, reference: float, rates: Sequence[float], form: Form = "linear") -> Tensor:
    """g_1 … g_L from f_1 … f_L (see the module's docstring); a layer descends enough where g_l ≤ 0."""
    retained = 1 - torch.as_tensor(rates, dtype=layer_losses.dtype, device=layer_losses.device)
    previous = torch.cat([layer_losses.new_tensor([reference]), layer_losses[:-1]])
    if form == "linear":
        return layer_losses - retained * previous
    return in_form(layer_losses, form) - in_form(previous, form) - retained.log()


class LayerwiseDescent(cooper.ConstrainedMinimizationProblem):
    """The multipliers λ, the slacks u, and the Lagrangian that ties them to the layer losses.

    Resilience prices a relaxation g_l ≤ u_l at β/2·‖u‖². `slack` trains u ≥ 0 with the weights. `decay` puts in
    the optimal u = λ/β, which leaves −‖λ‖²/2β in the dual; its gradient ∇ − λ/β goes *into* the dual optimiser
    (coupled), so that for a constant violation v both settle at λ = βv. Multipliers and slacks start at 0.
    """

    def __init__(
        self,
        n_layers: int,
        alpha: float | Sequence[float],
        reference: float,
        *,
        form: Form = "linear",
        resilience: Resilience = "none",
        beta: float | None = None,
        dual: Dual | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if (resilience == "none") != (beta is None):
            raise ValueError("beta is the price of resilience: give it with slack or decay, and not with none")
        self.n_layers = n_layers
        self.rates = rates_per_layer(alpha, n_layers)
        self.reference = reference
        self.form: Form = form
        self.resilience: Resilience = resilience
        self.beta = beta or math.inf
        # One vector for all layers: a constraint per layer is slower, and its order would change between processes.
        self._multiplier = cooper.multipliers.DenseMultiplier(num_constraints=n_layers, device=torch.device(device))
        self.descends = cooper.Constraint(cooper.ConstraintType.INEQUALITY, multiplier=self._multiplier)
        self._slack = torch.nn.Parameter(torch.zeros(n_layers, device=device)) if resilience == "slack" else None
        self.dual_optimizer = _dual_optimizer(self._multiplier.weight, dual or Dual())

    @property
    def multiplier_values(self) -> Tensor:
        """λ_1 … λ_L."""
        return self._multiplier.weight.detach()

    @property
    def slack(self) -> Tensor:
        """u_1 … u_L: trained, or λ/β, which is zero without resilience (an infinite price)."""
        if self._slack is not None:
            return self._slack.detach()
        return self.multiplier_values / self.beta

    def slack_in_loss_units(self, layer_losses: Tensor) -> Tensor:
        """How much more loss each layer is let than (1−α_l)·f_{l−1}: u, or (eᵘ − 1)·(1−α_l)·f_{l−1} in the log form."""
        slack = self.slack.to(layer_losses)
        if self.form == "linear":
            return slack
        allowed = layer_losses - descent_violations(layer_losses, self.reference, self.rates)
        return slack.expm1() * allowed

    def slack_parameters(self) -> Iterator[torch.nn.Parameter]:
        """What the primal optimiser trains besides the weights; nothing unless resilience is `slack`."""
        if self._slack is not None:
            yield self._slack

    def in_form(self, losses: Tensor) -> Tensor:
        """f, or log f in the log form."""
        return in_form(losses, self.form)

    def violations(self, layer_losses: Tensor) -> Tensor:
        """g_1 … g_L, before any relaxation."""
        return descent_violations(layer_losses, self.reference, self.rates, self.form)

    def compute_cmp_state(self, layer_losses: Tensor, sampled: Sequence[int] | None = None) -> cooper.CMPState:
        """Objective f_L (+ β/2·‖u‖²) and violation g (− u), as Cooper wants them; computed in λ's precision.

        `sampled` are the layers of k constraints, drawn with equal probabilities: each stands for L/k, the others for
        nothing, which is right on average. Losses that belong to no sampled constraint are not looked at.
        """
        layer_losses = layer_losses.to(self._multiplier.weight)
        loss, violation = in_form(layer_losses[-1], self.form), self.violations(layer_losses)
        if self._slack is not None:
            loss = loss + 0.5 * self.beta * self._slack.square().sum()
            violation = violation - self._slack
        if sampled is not None:
            chosen = torch.tensor(sampled, device=violation.device) - 1
            shares = self.n_layers / len(sampled) * violation[chosen]
            violation = torch.zeros_like(violation).index_copy(0, chosen, shares)
        return cooper.CMPState(loss, {self.descends: cooper.ConstraintState(violation)})

    def lagrangian(self, layer_losses: Tensor, sampled: Sequence[int] | None = None) -> Tensor:
        """f_L + Σ λ_l·g_l, with slack + β/2·‖u‖² − Σ λ_l·u_l; differentiable in f and u, λ held fixed."""
        return self.compute_cmp_state(layer_losses, sampled).compute_primal_lagrangian().lagrangian

    def dual_step(self, layer_losses: Tensor, sampled: Sequence[int] | None = None) -> None:
        """λ ← [λ + ascent on (g − u)]₊, u being the trained slack, λ/β under decay, or 0.

        Call it between the primal backward pass and the primal step, so that both sides move from one point.
        """
        dual = self.compute_cmp_state(layer_losses.detach(), sampled).compute_dual_lagrangian().lagrangian
        if self.resilience == "decay":
            dual = dual - self._multiplier.weight.square().sum() / (2 * self.beta)
        self.dual_optimizer.zero_grad()
        self._multiplier.weight.grad = torch.autograd.grad(dual, self._multiplier.weight)[0]
        self.dual_optimizer.step()
        self._multiplier.post_step_()

    def project_slack(self) -> None:
        """u ← [u]₊, after the primal step."""
        if self._slack is not None:
            self._slack.data.clamp_(min=0)

    def restart_slack(self) -> None:
        """u ← 0, after an epoch: early relaxations are large and shrink slowly."""
        if self._slack is not None:
            self._slack.data.zero_()

    def state_dict(self) -> dict[str, Any]:
        """λ, u and what the dual optimiser remembers; plain tensors, so that it loads without trust."""
        return {
            "multipliers": self.multiplier_values.clone(),
            "slack": None if self._slack is None else self._slack.detach().clone(),
            "dual_optimizer": self.dual_optimizer.state_dict()["state"],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._multiplier.weight.data.copy_(state["multipliers"])
        if self._slack is not None:
            self._slack.data.copy_(state["slack"])
        groups = self.dual_optimizer.state_dict()["param_groups"]
        self.dual_optimizer.load_state_dict({"state": state["dual_optimizer"], "param_groups": groups})


def _dual_optimizer(multipliers: Tensor, dual: Dual) -> torch.optim.Optimizer:
    return registry.load("dual optimizer", dual.optimizer).build(multipliers, dual)
