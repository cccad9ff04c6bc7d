"""Constrained training by layerwise descent: J = the Lagrangian f_L + Σ λ_l·g_l, and J = f_L during
warm-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from cudt.method.objectives.base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from cudt.method.measurement import Measurement


class Constrained(Objective):
    """J = f_L + Σ λ_l·g_l; λ ascends on the same f (see method/descent.py, and constraints.py for
    g).
    """

    label = "constrained"
    style: ClassVar[dict[str, Any]] = {"color": "#0072B2", "linestyle": "-", "marker": "o"}
    card = (
        "Every layer was asked to lower the loss, f_l ≤ "
        '{{ "(1 − α_1)·…·(1 − α_l)·f_0" if info.form == "ladder" else "(1 − α_l)·f_{l−1}" }}, from f_0 = '
        '{{ "%.4g" | format(info.reference) }}. On validation data the constraints are\n'
        '{{ "kept" if info.feasible else "not all kept" }}, and '
        '{{ "every layer lowers the loss" if info.monotone else "not every layer lowers the loss" }}.'
    )
    is_constrained = True

    def value(self, f: Tensor) -> Tensor:
        """The Lagrangian, or f_L during warm-up."""
        if self.constrains:
            return self.descent.lagrangian(f)
        return self.descent.in_form(f[-1])

    def dual_step(self, f: Tensor) -> None:
        """One ascent step of λ on the violations; none during warm-up."""
        if self.constrains:
            self.descent.dual_step(f)

    def accumulate_slack_gradient(self, f: Tensor) -> None:
        """Add ∂J/∂u to the slack's `.grad`."""
        if self.constrains and any(True for _ in self.descent.slack_parameters()):
            self.descent.lagrangian(f.detach()).backward()

    def rank(self, measured: Measurement) -> list[float]:
        """The value of the problem that is solved, with f and g in the units of `descent.form`.

        With resilience, f_L + β/2·Σ [g_l]₊²: the cheapest slacks for these losses are u_l = [g_l]₊.
        Without it, feasible epochs come first, by f_L, then the others by Σ [g_l]₊. λ does not
        count: it is no part of the problem.
        """
        from cudt.method import feasibility

        descent, f = self.descent, measured.layer_losses
        last, excess = descent.in_form(f[-1]).item(), descent.violations(f).clamp_min(0)
        if descent.resilience != "none":
            return [last + 0.5 * descent.beta * excess.square().sum().item()]
        verdicts = feasibility.judge(
            measured, descent.reference, descent.rates, f.new_zeros(len(f)), descent.form
        )
        return (
            [0.0, 0.0, last]
            if feasibility.is_feasible(verdicts)
            else [1.0, excess.sum().item(), last]
        )


OBJECTIVE = Constrained
