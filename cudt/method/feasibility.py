"""The verdict at the end of a run: which layers meet their constraints on validation data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from cudt.method.constraints import Form, allowed_losses

if TYPE_CHECKING:
    # The report reads verdicts, and does without torch.
    from torch import Tensor

    from cudt.method.measurement import MeasuredExamples

#: A violation of up to this many standard errors may be chance; the theory has such a term, ζ(M,
#: δ).
TOLERANCE = 2.0

Verdict = Literal["met", "borderline", "relaxed", "violated"]
#: The verdicts of layers that make a run infeasible.
FAILING: tuple[Verdict, ...] = ("violated", "relaxed")


@dataclass(frozen=True)
class LayerVerdict:
    """g_l = f_l − allowed_l in the unit of the loss on validation data, its standard error, and the
    verdict.

    met          g_l ≤ 0
    borderline   0 < g_l ≤ 2 standard errors: not distinguishable from 0 with this much data
    relaxed      neither, but g_l ≤ u_l + 2 standard errors: met after resilience relaxed it
    violated     none of the above
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
    measured: MeasuredExamples,
    reference: float,
    rates: Sequence[float],
    slack: Tensor,
    form: Form = "linear",
) -> list[LayerVerdict]:
    """One verdict per layer; `slack` is u_l in units of the loss.

    The standard error is that of the paired per-example differences f_l − (1−α_l)·f_{l−1}, or of
    f_l on the ladder.
    """

    def differences() -> Iterator[tuple[Tensor, Tensor]]:
        """Those of each block, (layers, examples), and the examples' shares of the total weight."""
        for block in measured.blocks():
            allowed = allowed_losses(block.losses, reference, rates, form)
            yield block.losses - allowed, block.weights / measured.total_weight

    violation, count = slack.new_zeros(()), 0
    for difference, share in differences():
        violation, count = violation + difference @ share, count + len(share)
    correction = count / (count - 1) if count > 1 else 1.0
    variance = slack.new_zeros(())
    for difference, share in differences():
        variance = (
            variance + correction * (difference - violation.unsqueeze(1)).square() @ share.square()
        )
    losses = measured.layer_losses
    columns = (losses, losses - violation, violation, variance.sqrt(), slack)
    return [
        LayerVerdict(layer, *row)
        for layer, row in enumerate(zip(*(c.tolist() for c in columns), strict=True), 1)
    ]


def is_feasible(verdicts: Sequence[LayerVerdict]) -> bool:
    """Whether no layer's violation is distinguishable from 0 on the validation data."""
    return all(verdict.verdict not in FAILING for verdict in verdicts)


def is_monotone(reference: float, layer_losses: Sequence[float]) -> bool:
    """Whether f_0 > f_1 > … > f_L: every layer lowers the loss, starting from the reference."""
    return all(later < earlier for earlier, later in pairwise([reference, *layer_losses]))
