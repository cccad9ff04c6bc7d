"""The verdict about the constraints at the end of somebody else's loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from rich.table import Table
from torch import Tensor

from cudt.method import constraints
from cudt.method.constraints import LayerVerdict
from cudt.method.descent import LayerwiseDescent
from cudt.models.layer_losses import Measurement
from cudt.utils.console import SafeConsole


def layer_key(name: str, layer: int) -> str:
    """`loss/layer_03`: trackers group by what is before the slash."""
    return f"{name}/layer_{layer:02}"


def judge(
    descent: LayerwiseDescent, measured: Iterable[tuple[Tensor, Tensor]]
) -> list[LayerVerdict]:
    """One verdict per layer, from batches of losses, (layers, examples), and the examples'
    weights.
    """
    parts = []
    for losses, weights in measured:
        kept = weights > 0
        losses, weights = losses[:, kept].cpu().double(), weights[kept].cpu().double()
        parts.append(Measurement(losses, torch.zeros_like(losses), weights, [""] * len(weights)))
    whole = Measurement.joined(parts)
    slack = descent.slack_in_loss_units(whole.layer_losses).cpu().double()
    return constraints.judge(
        whole.losses, whole.weights, descent.reference, descent.rates, slack, descent.form
    )


def logged(verdicts: Sequence[LayerVerdict], reference: float) -> dict[str, float]:
    """The verdicts as numbers for a log: feasible, monotone, and the loss and violation of each
    layer.
    """
    return {
        "eval_feasible": float(constraints.is_feasible(verdicts)),
        "eval_monotone": float(_is_monotone(verdicts, reference)),
        **{layer_key("eval_loss", one.layer): one.loss for one in verdicts},
        **{layer_key("eval_violation", one.layer): one.violation for one in verdicts},
    }


def show(verdicts: Sequence[LayerVerdict], reference: float) -> None:
    """Print the verdicts as a table."""
    how = "feasible" if constraints.is_feasible(verdicts) else "not feasible"
    lowers = (
        "every layer lowers the loss"
        if _is_monotone(verdicts, reference)
        else "not every layer lowers the loss"
    )
    table = Table("layer", "loss", "allowed", "verdict")
    for one in verdicts:
        table.add_row(str(one.layer), f"{one.loss:.4g}", f"{one.allowed:.4g}", one.verdict)
    console = SafeConsole()
    console.print(table)
    console.print(f"constraints on validation data: {how}; {lowers}", soft_wrap=True)


def _is_monotone(verdicts: Sequence[LayerVerdict], reference: float) -> bool:
    return constraints.is_monotone(reference, [one.loss for one in verdicts])
