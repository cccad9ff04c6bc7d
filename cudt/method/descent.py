"""Layerwise descent as a constrained problem, solved by primal-dual steps on Cooper:

    minimise f_L  subject to  g_l ≤ 0,  l = 1 … L

where g_l is the violation of layer l's constraint (constraints.py). In the log form log f_L is
minimised: nothing depends on the scale of the loss then, so one dual learning rate fits
cross-entropies and squared pixels alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import cooper
import torch
from cooper.optim import nuPI, nuPIInitType
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from cudt.config import plugins
from cudt.config.schema import Descent, Dual, TargetLoss
from cudt.method.constraints import (
    Form,
    Gradient,
    allowed_losses,
    descent_violations,
    effective_weights,
    in_form,
    rate_for_target,
    rates_per_layer,
)
from cudt.utils.errors import UserError


class LayerwiseDescent(nn.Module):
    """The constraints f_l ≤ (1−α_l)·f_{l−1} with their multipliers λ, slacks u and Lagrangian, for
    any training loop:

        descent = LayerwiseDescent(6, alpha=0.1, reference=0.69, resilience="decay", beta=10.0)
        optimizer = torch.optim.Adam(model.parameters())
        descent.add_slack_to(optimizer)              # changes nothing unless resilience="slack"
        for batch in data:
            f = layer_losses(model, batch)           # a vector of 6 losses, from one forward pass
            optimizer.zero_grad()
            descent.lagrangian(f).backward()         # primal gradient
            descent.dual_step(f)                     # λ ascends on the same f
            optimizer.step()

    The arguments are the keys of a recipe's section `descent`. Resilience relaxes the constraints
    to g_l ≤ u_l at the cost β/2·‖u‖². `slack` trains u ≥ 0 together with the weights. `decay`
    inserts the optimal u = λ/β, which leaves −‖λ‖²/2β in the dual. With decay="coupled" its
    gradient ∇ − λ/β goes *into* the dual optimiser, so for a constant violation v both settle at
    λ = βv. With decay="decoupled" the optimiser sees ∇ alone, and λ ← [(1 − η₂/β)·λ + step]₊, as
    AdamW decays weights: under Adam, whose step does not depend on the size of ∇, that settles at
    λ = β for every v > 0. λ and u start at 0.

    λ has L numbers and stays on the CPU, where the Lagrangian is computed; the losses may be on any
    device. The `state_dict()` of this module has λ, u and the state of the dual optimiser; its
    `parameters()` are u alone, or none.
    """

    def __init__(
        self,
        n_layers: int,
        alpha: float | Sequence[float],
        reference: float,
        *,
        form: Form = "linear",
        gradient: Gradient = "full",
        resilience: Literal["none", "slack", "decay"] = "none",
        beta: float | None = None,
        decay: Literal["coupled", "decoupled"] = "coupled",
        dual: Dual | None = None,
    ) -> None:
        super().__init__()
        self.n_layers, self.rates = n_layers, rates_per_layer(alpha, n_layers)
        self.reference = float(reference)
        self.form, self.gradient, self.resilience, self.decay = form, gradient, resilience, decay
        self.beta = math.inf if beta is None else beta
        dual = dual or Dual()
        # A recipe's section knows which values and combinations make sense, and raises otherwise.
        keys: dict[str, Any] = {"form": form, "gradient": gradient, "resilience": resilience}
        keys |= {"beta": beta, "decay": decay, "dual": dual}
        Descent(alpha=self.rates, reference=self.reference, **keys)
        self._kept = 1 - dual.learning_rate / self.beta
        # Cooper's constraint is not a module, which keeps λ out of `parameters()`.
        self.constraint = cooper.Constraint(
            cooper.ConstraintType.INEQUALITY,
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=n_layers),
        )
        slack = nn.Parameter(torch.zeros(n_layers)) if resilience == "slack" else None
        self.trained_slack = slack
        make = plugins.implementation("dual optimizer", dual.optimizer)
        self.dual_optimizer: Optimizer = make(self.constraint.multiplier.weight, dual)

    @property
    def multiplier_values(self) -> Tensor:
        """λ_1 … λ_L."""
        return self.constraint.multiplier.weight.detach()

    @property
    def slack(self) -> Tensor:
        """u_1 … u_L: the trained slack, or λ/β, which is 0 without resilience (β = ∞)."""
        if self.trained_slack is not None:
            return self.trained_slack.detach()
        return self.multiplier_values / self.beta

    def slack_in_loss_units(self, layer_losses: Tensor) -> Tensor:
        """What slack adds to the allowed loss: u_l, or (exp(u_l) − 1)·allowed_l in the log form."""
        slack = self.slack.to(layer_losses)
        if self.form != "log":
            return slack
        return slack.expm1() * allowed_losses(layer_losses, self.reference, self.rates, self.form)

    def in_form(self, losses: Tensor) -> Tensor:
        """f, or log f in the log form."""
        return in_form(losses, self.form)

    def violations(self, layer_losses: Tensor) -> Tensor:
        """g_1 … g_L without relaxation; differentiable in f as `gradient` says."""
        if layer_losses.shape != (self.n_layers,):
            raise ValueError(
                f"layer losses: expected a vector of {self.n_layers} losses, one per layer, "
                f"got a tensor of shape {tuple(layer_losses.shape)}"
            )
        return descent_violations(
            layer_losses, self.reference, self.rates, self.form, self.gradient
        )

    def effective_weights(self) -> Tensor:
        """w_1 … w_L: the weight of each layer's loss in the primal step (constraints.py)."""
        return effective_weights(self.multiplier_values, self.rates, self.form, self.gradient)

    # ---------------------------------------------------------------- the primal and the dual step

    def compute_cmp_state(self, layer_losses: Tensor) -> cooper.CMPState:
        """Cooper's view of a point: the loss f_L (+ β/2·‖u‖²) and the violation g (− u)."""
        f = layer_losses.to(self.multiplier_values)
        violation, loss = self.violations(f), self.in_form(f[-1])
        if self.trained_slack is not None:
            slack = self.trained_slack.to(f)
            loss = loss + 0.5 * self.beta * slack.square().sum()
            violation = violation - slack
        return cooper.CMPState(loss, {self.constraint: cooper.ConstraintState(violation)})

    def lagrangian(self, layer_losses: Tensor) -> Tensor:
        """f_L + Σ λ_l·(g_l − u_l) + β/2·‖u‖², with u = 0 unless slack is trained; differentiable
        in f and u, not in λ.
        """
        with torch.autocast("cpu", enabled=False):  # it would round the product of λ and g
            return self.compute_cmp_state(layer_losses).compute_primal_lagrangian().lagrangian

    def dual_step(self, layer_losses: Tensor) -> None:
        """λ ← [λ + ascent on (g − u)]₊, where u is the trained slack, λ/β under coupled decay, or
        0. Under decoupled decay λ ← [(1 − η₂/β)·λ + ascent on g]₊.

        Call it between the primal backward pass and the primal step, so that both sides step from
        the same point. Where the gradient is not finite it raises a ValueError, before anything
        has changed: λ would stay NaN for ever.
        """
        weight, gradient = self.constraint.multiplier.weight, self._dual_gradient(layer_losses)
        if not bool(torch.isfinite(gradient).all()):
            raise ValueError(
                f"layer losses must have finite violations, got f = {layer_losses.tolist()} and "
                f"g = {gradient.tolist()}; lower the learning rates, or check the batch"
            )
        weight.grad = gradient
        if self.decay == "decoupled":
            # Before the step, as in AdamW: an optimiser's step depends on the gradient, not on λ.
            weight.data.mul_(self._kept)
        self.dual_optimizer.step()
        self.constraint.multiplier.post_step_()

    def _dual_gradient(self, layer_losses: Tensor) -> Tensor:
        """∇_λ (Σ λ_l·(g_l − u_l) − ‖λ‖²/2β), the last term under coupled decay only."""
        weight = self.constraint.multiplier.weight
        with torch.autocast("cpu", enabled=False):
            state = self.compute_cmp_state(layer_losses.detach())
            dual = state.compute_dual_lagrangian().lagrangian
            if self.resilience == "decay" and self.decay == "coupled":
                dual = dual - weight.square().sum() / (2 * self.beta)
        return torch.autograd.grad(dual, weight)[0]

    # ---------------------------------------------------------------- trained slack

    def add_slack_to(self, optimizer: Optimizer) -> None:
        """Let a primal optimiser train u at the rate η₁·f_0 (η₁ in the log form), and project it
        onto u ≥ 0 after each of its steps.

        Changes nothing unless resilience="slack". Call it before something wraps the optimiser: a
        schedule of the learning rate, or Accelerate.
        """
        slack = self.trained_slack
        if slack is None:
            return

        def project(*_: object) -> None:
            slack.data.clamp_(min=0)

        optimizer.register_step_post_hook(project)
        # In units of f_0, because Adam's steps do not grow with the losses. Weight decay would
        # relax the constraints less than β says.
        unit = 1.0 if self.form == "log" else self.reference
        rate = unit * optimizer.param_groups[0]["lr"]
        optimizer.add_param_group({"params": [slack], "lr": rate, "weight_decay": 0.0})

    def restart_slack(self) -> None:
        """u ← 0; call it after an epoch, because early relaxations are large and shrink slowly."""
        if self.trained_slack is not None:
            self.trained_slack.data.zero_()

    # ---------------------------------------------------------------- checkpoints

    def get_extra_state(self) -> dict[str, Any]:
        """λ and the dual optimiser's state: tensors and numbers, which weights_only can load."""
        state = self.dual_optimizer.state_dict()["state"]
        return {"multipliers": self.multiplier_values.clone(), "dual_optimizer": state}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load what `get_extra_state` returned."""
        if len(state["multipliers"]) != self.n_layers:
            raise ValueError(
                f"checkpoint has {len(state['multipliers'])} multipliers, and the problem has "
                f"{self.n_layers} layers"
            )
        self.multiplier_values.copy_(state["multipliers"])
        groups = self.dual_optimizer.state_dict()["param_groups"]
        self.dual_optimizer.load_state_dict(
            {"state": state["dual_optimizer"], "param_groups": groups}
        )


def descent_of(settings: Descent, n_layers: int, reference: float) -> LayerwiseDescent:
    """The constraints of a recipe's section; `reference` is f_0, its own or that of `auto`."""
    if not reference > 0:
        raise UserError(
            f"descent.reference: f_0 must be above 0, and 'auto' gives {reference:g}, the loss of "
            "the best constant answer on the training data; set descent.reference to a number"
        )
    alpha = settings.alpha
    try:
        if isinstance(alpha, TargetLoss):
            alpha = rate_for_target(alpha.target_loss, reference, n_layers)
        rates = rates_per_layer(alpha, n_layers)
    except ValueError as error:
        raise UserError(f"descent.alpha: {error}") from None
    names = ("form", "gradient", "resilience", "beta", "decay", "dual")
    keys: dict[str, Any] = {name: getattr(settings, name) for name in names}
    return LayerwiseDescent(n_layers, rates, reference, **keys)


# ---------------------------------------------------------------- optimisers of the multipliers


def adam(multipliers: Tensor, dual: Dual) -> Optimizer:
    """Adam, as in the paper: its steps do not depend on the scale of the violations."""
    return Adam([multipliers], lr=dual.learning_rate, maximize=True)


def sgd(multipliers: Tensor, dual: Dual) -> Optimizer:
    """Gradient ascent: λ ← λ + η₂·g."""
    return SGD([multipliers], lr=dual.learning_rate, maximize=True)


def nupi(multipliers: Tensor, dual: Dual) -> Optimizer:
    """nuPI (Sohrabi et al., 2024): its proportional term damps oscillations of λ."""
    return nuPI(
        [multipliers],
        lr=dual.learning_rate,
        Kp=1.0 if dual.proportional_gain is None else dual.proportional_gain,
        Ki=1.0,
        ema_nu=dual.smoothing or 0.0,
        # Cooper's SGD start drops the first gradient: its second step would not be the published.
        init_type=nuPIInitType.ZEROS,
        maximize=True,
    )
