"""The constraints of the layers l = 1 … L on their losses f_1 … f_L, in three forms:

    linear   g_l = f_l − (1−α_l)·f_{l−1} ≤ 0
    log      g_l = log f_l − log f_{l−1} − log(1−α_l) ≤ 0
    ladder   g_l = f_l − (1−α_1)·…·(1−α_l)·f_0 ≤ 0

f_0 is a fixed number, the `reference`, and so are the bounds of the ladder. `linear` and `log` have
the same feasible set, but with resilience other minimisers: a slack relaxes the linear form by an
amount of loss, the log form by a factor. A point that meets `linear` meets the ladder; the converse
does not hold.

There are two gradients of g. `full` differentiates all of it: λ_l then also pays for *raising*
f_{l−1}. `proxy` takes what the constraint allows as a number, so λ_l pays only for lowering f_l
(Cotter et al., 2019). The values of g are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

Form = Literal["linear", "log", "ladder"]
Gradient = Literal["full", "proxy"]
Verdict = Literal["met", "borderline", "relaxed", "violated"]

#: The verdicts of layers that make a run infeasible.
FAILING: tuple[Verdict, ...] = ("violated", "relaxed")
#: A violation of up to this many standard errors may be chance; ζ(M, δ) in the theory.
TOLERANCE = 2.0


def rates_per_layer(alpha: float | Sequence[float], n_layers: int) -> list[float]:
    """α_1 … α_L, from one rate for all layers or from one rate for each."""
    rates = [float(a) for a in ([alpha] * n_layers if isinstance(alpha, int | float) else alpha)]
    if len(rates) != n_layers or not rates:
        raise ValueError(
            f"expected one rate, or one for each of {n_layers} layers, got {len(rates)} rates"
        )
    return rates


def rate_for_target(target_loss: float, reference: float, n_layers: int) -> float:
    """The α that leads from f_0 to `target_loss` in L layers: 1 − α = (target_loss / f_0)^(1/L)."""
    if not 0 < target_loss < reference:
        raise ValueError(
            f"target_loss must be between 0 and the reference f_0 = {reference:g}, "
            f"got {target_loss:g}"
        )
    return 1 - (target_loss / reference) ** (1 / n_layers)


def in_form(losses: Tensor, form: Form) -> Tensor:
    """f, or log f in the log form; a loss that underflowed to 0 counts as the smallest positive
    number.
    """
    return losses.clamp_min(torch.finfo(losses.dtype).tiny).log() if form == "log" else losses


def allowed_losses(
    layer_losses: Tensor, reference: float, rates: Sequence[float], form: Form
) -> Tensor:
    """The largest losses that meet the constraints: (1−α_l)·f_{l−1}, or (1−α_1)·…·(1−α_l)·f_0 on
    the ladder.

    `layer_losses` has the layers in its first dimension, and may have others, such as examples:
    then f_{l−1} is that of the same example.
    """
    kept = _kept(layer_losses, rates)
    if form == "ladder":
        return (reference * kept.cumprod(0)).expand_as(layer_losses)
    return kept * _before(layer_losses, reference)


def descent_violations(
    layer_losses: Tensor,
    reference: float,
    rates: Sequence[float],
    form: Form = "linear",
    gradient: Gradient = "full",
) -> Tensor:
    """g_1 … g_L (equations in the module's docstring); layer l meets its constraint if g_l ≤ 0."""
    bounding = layer_losses.detach() if gradient == "proxy" else layer_losses
    if form == "log":
        before = in_form(_before(bounding, reference), form)
        return in_form(layer_losses, form) - before - _kept(layer_losses, rates).log()
    return layer_losses - allowed_losses(bounding, reference, rates, form)


def effective_weights(
    multipliers: Tensor, rates: Sequence[float], form: Form, gradient: Gradient
) -> Tensor:
    """w_1 … w_L: the weight of each layer's loss in the primal step, ∂(f_L + Σ λ·g)/∂f_l; a layer
    with a negative weight is trained to raise its loss.

        w_l = λ_l − (1−α_{l+1})·λ_{l+1}     w_L = 1 + λ_L

    In the log form they are per unit of log f, without (1−α). On the ladder and with the proxy
    gradient w_l = λ_l.
    """
    earlier, later = multipliers[:-1], multipliers[1:]
    if form != "ladder" and gradient == "full":
        earlier = earlier - (later if form == "log" else _kept(later, rates[1:]) * later)
    return torch.cat([earlier, multipliers[-1:] + 1])


def _kept(layer_losses: Tensor, rates: Sequence[float]) -> Tensor:
    """1−α_1 … 1−α_L, in the first dimension of the losses."""
    kept = 1 - torch.tensor(rates, dtype=layer_losses.dtype, device=layer_losses.device)
    return kept.reshape(-1, *(1 for _ in layer_losses.shape[1:]))


def _before(layer_losses: Tensor, reference: float) -> Tensor:
    """f_0 … f_{L−1}."""
    return torch.cat([torch.full_like(layer_losses[:1], reference), layer_losses[:-1]])


# ---------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class LayerVerdict:
    """g_l = f_l − allowed_l on validation data, in the unit of the loss, its standard error s_l,
    and the verdict:

    met          g_l ≤ 0
    borderline   0 < g_l ≤ 2·s_l: not distinguishable from 0 with this much data
    relaxed      neither, but g_l ≤ u_l + 2·s_l: met after resilience relaxed it
    violated     none of these
    """

    layer: int
    loss: float
    allowed: float
    violation: float
    standard_error: float
    slack: float

    @property
    def verdict(self) -> Verdict:
        margin = TOLERANCE * self.standard_error
        if self.violation <= 0:
            return "met"
        if self.violation <= margin:
            return "borderline"
        return "relaxed" if self.violation <= self.slack + margin else "violated"


def judge(
    losses: Tensor,
    weights: Tensor,
    reference: float,
    rates: Sequence[float],
    slack: Tensor,
    form: Form = "linear",
) -> list[LayerVerdict]:
    """One verdict per layer, from the losses of examples, (layers, examples), and their weights.

    The standard error is that of the paired differences f_l − (1−α_l)·f_{l−1} of the examples, or
    of f_l on the ladder. `slack` is u_l in units of the loss.
    """
    count, total = len(weights), weights.sum()
    f, share = losses @ weights / total, weights / total
    difference = losses - allowed_losses(losses, reference, rates, form)
    violation = difference @ share
    spread = count / max(count - 1, 1) * (difference - violation.unsqueeze(1)).square()
    columns = (f, f - violation, violation, (spread @ share.square()).sqrt(), slack)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [LayerVerdict(layer, *row) for layer, row in enumerate(rows, 1)]


def is_feasible(verdicts: Sequence[LayerVerdict]) -> bool:
    """Whether no layer's violation is distinguishable from 0 on the validation data."""
    return all(verdict.verdict not in FAILING for verdict in verdicts)


def is_monotone(reference: float, layer_losses: Sequence[float]) -> bool:
    """Whether f_0 > f_1 > … > f_L: every layer lowers the loss, starting from the reference."""
    return all(later < earlier for earlier, later in pairwise([reference, *layer_losses]))
