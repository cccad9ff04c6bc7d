"""Layerwise descent as a constrained problem, solved by primal-dual steps on Cooper.

    minimise f_L  subject to  g_l ≤ 0,  l = 1 … L

where g_l is the violation of layer l's constraint (constraints.py); in the log form, log f_L is
minimised. The log form does not depend on the scale of the loss, so one dual learning rate fits
cross-entropies and squared pixels alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import cooper
import torch
from torch import Tensor, nn

from cudt.config import plugins
from cudt.config.schema import Dual
from cudt.method.constraints import (
    Form,
    Gradient,
    allowed_losses,
    descent_violations,
    effective_weights,
    in_form,
    rates_per_layer,
)
from cudt.utils.autocast import without_autocast
from cudt.utils.transfer import sent

Resilience = Literal["none", "slack", "decay"]
Decay = Literal["coupled", "decoupled"]


class _Multipliers(cooper.multipliers.DenseMultiplier):
    """λ, which Cooper reads on the device of the losses, while λ itself may stay on the CPU."""

    wanted = torch.device("cpu")
    """The device of the losses."""

    def forward(self) -> Tensor:
        return sent(super().forward(), self.wanted)


class LayerwiseDescent(nn.Module):
    """The constraints f_l ≤ (1−α_l)·f_{l−1} with their multipliers λ, slacks u and Lagrangian, for
    any training loop:

        descent = LayerwiseDescent(n_layers=6, alpha=0.1, reference=0.69, dual=Dual(learning_rate=1e-2))
        optimizer = torch.optim.Adam(model.parameters())
        descent.add_slack_to(optimizer)              # changes nothing unless resilience="slack"
        for batch in data:
            f = layer_losses(model, batch)           # a vector of 6 losses, from one forward pass
            optimizer.zero_grad()
            descent.lagrangian(f).backward()         # primal gradient
            descent.dual_step(f)                     # λ ascends on the same f
            optimizer.step()

    Resilience relaxes the constraints to g_l ≤ u_l at the cost β/2·‖u‖². `slack` trains u ≥ 0
    together with the weights. `decay` inserts the optimal u = λ/β, which leaves −‖λ‖²/2β in the
    dual. With decay="coupled" its gradient ∇ − λ/β goes *into* the dual optimiser, so for a
    constant violation v both settle at λ = βv. With decay="decoupled" the optimiser sees ∇ alone,
    and λ ← [(1 − η₂/β)·λ + step]₊, as AdamW decays weights: under Adam, whose step does not depend
    on the size of ∇, that settles at λ = β for every v > 0. λ and u start at 0.

    gradient="proxy" takes f_{l−1} in g_l as a number on the primal side, while λ ascends on the
    same g: then no layer's loss has a negative weight (`effective_weights`).

    The linear and the log form have the same feasible set, but the same minimisers only without
    resilience. The form "ladder" asks for f_l ≤ (1−α_1)·…·(1−α_l)·f_0: bounds that no layer can
    move.

    As a module: `.to(device)` moves λ, u and the state of the dual optimiser, and `state_dict()`
    contains all three. Losses on an accelerator are also fine while λ is on the CPU: the Lagrangian
    is computed on their device. λ is not a parameter, so `parameters()` is safe to hand to the
    primal optimiser: it yields the slack or nothing. λ and u keep their precision in `.half()` and
    `.bfloat16()`, which would round small steps away.

    Losses that are NaN or infinite raise a ValueError, at the cost of one device synchronisation
    per call; `check_finite=False` leaves that to the caller. `dual_step` refuses a dual gradient
    that is not finite in any case: λ would stay NaN for ever. While λ is on the CPU, that waits for
    no device.
    """

    def __init__(
        self,
        n_layers: int,
        alpha: float | Sequence[float],
        reference: float,
        *,
        form: Form = "linear",
        gradient: Gradient = "full",
        resilience: Resilience = "none",
        beta: float | None = None,
        decay: Decay = "coupled",
        dual: Dual | None = None,
        device: torch.device | str = "cpu",
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        dual = dual or Dual()
        _check_choices(form=form, gradient=gradient, resilience=resilience, decay=decay)
        _check_beta(resilience, beta, decay, dual)
        self.n_layers = n_layers
        self.rates = rates_per_layer(alpha, n_layers)
        self.reference = _checked_reference(reference)
        self.form: Form = form
        self.gradient: Gradient = gradient
        self.resilience: Resilience = resilience
        self.beta = math.inf if beta is None else beta
        self.decay: Decay = decay
        self._kept = 1 - dual.learning_rate / self.beta
        self.check_finite = check_finite
        # One vector for all layers: one constraint per layer is slower, and its order could differ
        # between processes.
        multiplier = _Multipliers(num_constraints=n_layers, device=torch.device(device))
        # Cooper's constraint is not a module, which keeps λ out of `parameters()`.
        self.constraint = cooper.Constraint(cooper.ConstraintType.INEQUALITY, multiplier=multiplier)
        self.trained_slack = (
            nn.Parameter(torch.zeros(n_layers, device=device)) if resilience == "slack" else None
        )
        self.dual_optimizer = _dual_optimizer(multiplier.weight, dual)

    @property
    def _multiplier(self) -> _Multipliers:
        multiplier = self.constraint.multiplier
        assert isinstance(multiplier, _Multipliers)
        return multiplier

    @property
    def multiplier_values(self) -> Tensor:
        """λ_1 … λ_L."""
        return self._multiplier.weight.detach()

    @property
    def slack(self) -> Tensor:
        """u_1 … u_L: the trained slack, or λ/β, which is 0 without resilience (β = ∞)."""
        if self.trained_slack is not None:
            return self.trained_slack.detach()
        return self.multiplier_values / self.beta

    def slack_in_loss_units(self, layer_losses: Tensor) -> Tensor:
        """The loss that slack adds to what a constraint allows: u_l; in the log form, exp(u_l) − 1
        times the bound.
        """
        slack = self.slack.to(layer_losses)
        return slack.expm1() * self.allowed_losses(layer_losses) if self.form == "log" else slack

    def allowed_losses(self, layer_losses: Tensor) -> Tensor:
        """The largest losses that meet the constraints without relaxation, in the unit of the
        loss.
        """
        return allowed_losses(layer_losses, self.reference, self.rates, self.form)

    def slack_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that the primal optimiser trains besides the weights: u with
        resilience="slack", else none.
        """
        if self.trained_slack is not None:
            yield self.trained_slack

    def add_slack_to(self, optimizer: torch.optim.Optimizer) -> None:
        """Let a primal optimiser train u, and project it after each of its steps; u has no weight
        decay.

        Changes nothing unless resilience="slack". Call it before something wraps the optimiser: a
        schedule of the learning rate, or Accelerate.
        """
        for slack in self.slack_parameters():
            optimizer.register_step_post_hook(lambda *_: self.project_slack())
            # The optimiser's own decay would relax the constraints less than β says.
            optimizer.add_param_group({"params": [slack], "weight_decay": 0.0})

    def in_form(self, losses: Tensor) -> Tensor:
        """f, or log f in the log form."""
        return in_form(losses, self.form)

    def violations(self, layer_losses: Tensor) -> Tensor:
        """g_1 … g_L without relaxation; a NaN loss gives NaN violations."""
        self._check_shape(layer_losses)
        return descent_violations(layer_losses, self.reference, self.rates, self.form)

    def effective_weights(self) -> Tensor:
        """w_1 … w_L: the weight of each layer's loss in the primal step; a negative one raises it
        (constraints.py).
        """
        return effective_weights(self.multiplier_values, self.rates, self.form, self.gradient)

    def settled_weights(self) -> Tensor | None:
        """w_1 … w_L where λ would settle if no layer improved on f_0; None without resilience,
        where it would not.

        Then g_l = α_l·f_0 in the linear form, and λ_l = β·g_l; under Adam with decoupled decay, λ_l
        = β.
        """
        if self.resilience == "none":
            return None
        stuck = torch.full((self.n_layers,), self.reference, dtype=torch.double)
        violation = self.violations(stuck).clamp_min(0)
        if self.decay == "decoupled" and isinstance(self.dual_optimizer, torch.optim.Adam):
            violation = (violation > 0).double()
        return effective_weights(self.beta * violation, self.rates, self.form, self.gradient)

    def compute_cmp_state(self, layer_losses: Tensor) -> cooper.CMPState:
        """Cooper's view of a point: loss f_L (+ β/2·‖u‖²) and violation g (− u), in the precision
        of λ.
        """
        self._check_shape(layer_losses)
        if self.check_finite:
            self._check_finite(layer_losses.detach())
        self._multiplier.wanted = layer_losses.device
        layer_losses = layer_losses.to(self._multiplier.weight.dtype)
        loss = in_form(layer_losses[-1], self.form)
        if self.trained_slack is not None:
            slack = sent(self.trained_slack, layer_losses.device)
            loss = loss + 0.5 * self.beta * slack.square().sum()
        state = cooper.ConstraintState(self._observed(layer_losses, self.gradient))
        if self.gradient == "proxy":
            # The weights see the proxy, λ the violation itself.
            state.strict_violation = self._observed(layer_losses, "full").detach()
        return cooper.CMPState(loss, {self.constraint: state})

    def _observed(self, layer_losses: Tensor, gradient: Gradient) -> Tensor:
        """g − u."""
        violation = descent_violations(
            layer_losses, self.reference, self.rates, self.form, gradient
        )
        if self.trained_slack is not None:
            violation = violation - sent(self.trained_slack, violation.device)
        return violation

    def lagrangian(self, layer_losses: Tensor) -> Tensor:
        """f_L + Σ λ_l·(g_l − u_l) + β/2·‖u‖² (u = 0 unless slack is trained); differentiable in f
        and u, not in λ.
        """
        with without_autocast(layer_losses.device):
            return self.compute_cmp_state(layer_losses).compute_primal_lagrangian().lagrangian

    def forward(self, layer_losses: Tensor) -> Tensor:
        """The Lagrangian."""
        return self.lagrangian(layer_losses)

    def dual_step(self, layer_losses: Tensor) -> None:
        """λ ← [λ + ascent on (g − u)]₊, where u is the trained slack, λ/β under coupled decay, or
        0.

        Under decoupled decay λ ← [(1 − η₂/β)·λ + ascent on g]₊.

        Call it between the primal backward pass and the primal step, so that both sides step from
        the same point.
        """
        with without_autocast(layer_losses.device):
            gradient = self._dual_gradient(layer_losses.detach())
        if not bool(torch.isfinite(gradient).all()):
            self._check_finite(layer_losses.detach())
            raise ValueError(
                f"the dual gradient must be finite, got {gradient.tolist()}; λ is unchanged"
            )
        weight = self._multiplier.weight
        self.dual_optimizer.zero_grad()
        weight.grad = gradient
        if self.decay == "decoupled":
            # Before the step, as AdamW does it; the optimisers' steps depend on the gradient, not
            # on λ.
            weight.data.mul_(self._kept)
        self.dual_optimizer.step()
        self._multiplier.post_step_()

    def _dual_gradient(self, layer_losses: Tensor) -> Tensor:
        dual = self.compute_cmp_state(layer_losses).compute_dual_lagrangian().lagrangian
        weight = self._multiplier.weight
        if self.resilience == "decay" and self.decay == "coupled":
            dual = dual - weight.square().sum() / (2 * self.beta)
        return torch.autograd.grad(dual, weight)[0]

    def project_slack(self) -> None:
        """u ← [u]₊; call it after the primal step, unless `add_slack_to` does it."""
        if self.trained_slack is not None:
            self.trained_slack.data.clamp_(min=0)

    def restart_slack(self) -> None:
        """u ← 0; call it after an epoch, because early relaxations are large and shrink slowly."""
        if self.trained_slack is not None:
            self.trained_slack.data.zero_()

    def extra_repr(self) -> str:
        return f"n_layers={self.n_layers}, reference={self.reference:g}, form={self.form}, resilience={self.resilience}"

    # ---------------------------------------------------------------- module: devices and
    # checkpoints

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LayerwiseDescent:
        """Move λ, u and the dual optimiser's state to the device that `fn` moves tensors to, in
        their precision.
        """

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor).device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        moved = move(self._multiplier.weight.detach())
        if moved.device != self._multiplier.weight.device:
            state, optimizer = self.dual_optimizer.state_dict(), self.dual_optimizer
            self._multiplier.weight = nn.Parameter(moved)
            optimizer.param_groups[0]["params"] = [self._multiplier.weight]
            optimizer.state.clear()
            # Moves the state to λ's device, except for counters that the optimiser keeps on the
            # CPU.
            optimizer.load_state_dict(state)
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """λ and the dual optimiser's state, as plain tensors and numbers that `torch.load` reads
        with weights_only.
        """
        return {
            "multipliers": self.multiplier_values.clone(),
            "dual_optimizer": self.dual_optimizer.state_dict()["state"],
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load what `get_extra_state` returned."""
        if len(state["multipliers"]) != self.n_layers:
            raise ValueError(
                f"checkpoint does not fit this problem: it has {len(state['multipliers'])} "
                "multipliers, "
                f"and the problem has {self.n_layers} layers"
            )
        self._multiplier.weight.data.copy_(state["multipliers"])
        groups = self.dual_optimizer.state_dict()["param_groups"]
        self.dual_optimizer.load_state_dict(
            {"state": state["dual_optimizer"], "param_groups": groups}
        )

    # ---------------------------------------------------------------- checks

    def _check_shape(self, layer_losses: Tensor) -> None:
        if layer_losses.shape != (self.n_layers,):
            raise ValueError(
                f"layer losses: expected a vector of {self.n_layers} losses, one per layer, "
                f"got a tensor of shape {tuple(layer_losses.shape)}"
            )

    def _check_finite(self, layer_losses: Tensor) -> None:
        # One synchronisation for all layers; which layer it is matters only once something is
        # wrong.
        if bool(torch.isfinite(layer_losses).all()):
            return
        bad = [
            f"f_{layer} = {f}"
            for layer, f in enumerate(layer_losses.tolist(), 1)
            if not math.isfinite(f)
        ]
        raise ValueError(
            f"layer losses must be finite, got {', '.join(bad)}; lower the learning rates, or "
            "check the batch"
        )


_CHOICES = {"form": Form, "gradient": Gradient, "resilience": Resilience, "decay": Decay}


def _check_choices(**given: str) -> None:
    for name, value in given.items():
        choices = get_args(_CHOICES[name])
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _check_beta(resilience: str, beta: float | None, decay: str, dual: Dual) -> None:
    if (resilience == "none") != (beta is None):
        raise ValueError(
            "beta is the price of resilience: give it with slack or decay, and not with none"
        )
    if beta is not None and not beta > 0:
        raise ValueError(f"beta must be above 0, got {beta:g}")
    if decay == "decoupled" and resilience != "decay":
        raise ValueError(
            f"decay='decoupled' has no effect with resilience={resilience!r}; use "
            "resilience='decay'"
        )
    if decay == "decoupled" and beta is not None and dual.learning_rate > beta:
        raise ValueError(
            "decay='decoupled' multiplies λ by 1 − η₂/β, which must not be negative: the dual "
            "learning rate is "
            f"{dual.learning_rate:g} and beta is {beta:g}"
        )


def _checked_reference(reference: float) -> float:
    if isinstance(reference, str):
        raise ValueError(
            f"reference={reference!r}: only a recipe can use 'auto', because it needs a task to "
            "measure f_0 on; "
            "pass f_0 as a number, such as log(number of classes) for a cross-entropy"
        )
    if not (math.isfinite(reference) and reference > 0):
        raise ValueError(f"reference must be a finite number above 0, got {reference:g}")
    return reference


def _dual_optimizer(multipliers: Tensor, dual: Dual) -> torch.optim.Optimizer:
    return plugins.implementation("dual optimizer", dual.optimizer)(multipliers, dual)
