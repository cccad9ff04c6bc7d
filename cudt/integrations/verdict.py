"""The state of the constraints in somebody else's loop: logged, and judged at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from torch import Tensor

from cudt.method import constraints
from cudt.method.constraints import LayerVerdict
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives import Objective


def update_log(objective: Objective, f: Tensor) -> dict[str, float]:
    """What a log shows of each layer after an update at f_1 … f_L: `loss/layer_01` and so on, and
    violation, multiplier, weight w_l and slack if the update had constraints.
    """
    descent, found = objective.descent, {"loss": f}
    if objective.constrains:
        found["violation"] = descent.violations(f)
        found["multiplier"] = descent.multiplier_values
        found["weight"] = descent.effective_weights()
        if descent.resilience != "none":
            found["slack"] = descent.slack
    return {
        _key(name, layer): value
        for name, values in found.items()
        for layer, value in enumerate(values.tolist(), 1)
    }


def judge(descent: LayerwiseDescent, losses: Tensor, weights: Tensor) -> list[LayerVerdict]:
    """One verdict per layer, from the losses of examples, (layers, examples), and their weights."""
    kept = weights > 0
    losses, weights = losses[:, kept].cpu().double(), weights[kept].cpu().double()
    slack = descent.slack_in_loss_units(losses @ weights / weights.sum()).cpu()
    return constraints.judge(losses, weights, descent.reference, descent.rates, slack, descent.form)


def verdict_log(verdicts: Sequence[LayerVerdict], reference: float) -> dict[str, float]:
    """The verdicts as numbers for a log."""
    losses = [one.loss for one in verdicts]
    return {
        "eval_feasible": float(constraints.is_feasible(verdicts)),
        "eval_monotone": float(constraints.is_monotone(reference, losses)),
        **{_key("eval_loss", one.layer): one.loss for one in verdicts},
        **{_key("eval_violation", one.layer): one.violation for one in verdicts},
    }


def show(verdicts: Sequence[LayerVerdict], reference: float) -> None:
    """Print the verdicts as a table."""
    table = Table("layer", "loss", "allowed", "verdict")
    for one in verdicts:
        table.add_row(str(one.layer), f"{one.loss:.4g}", f"{one.allowed:.4g}", one.verdict)
    losses = [one.loss for one in verdicts]
    feasible = "feasible" if constraints.is_feasible(verdicts) else "not feasible"
    which = "every layer" if constraints.is_monotone(reference, losses) else "not every layer"
    Console().print(table)
    print(f"constraints on validation data: {feasible}; {which} lowers the loss")


def _key(name: str, layer: int) -> str:
    # Trackers group by what is before the slash.
    return f"{name}/layer_{layer:02}"
