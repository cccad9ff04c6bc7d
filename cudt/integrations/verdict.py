"""The state of the constraints in somebody else's loop: logged, saved, and judged at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from cudt.method import constraints
from cudt.method.constraints import LayerVerdict
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives import Objective
from cudt.utils.errors import UserError

_FILE = "descent.pt"


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
    return {
        "eval_feasible": float(constraints.is_feasible(verdicts)),
        "eval_monotone": float(_is_monotone(verdicts, reference)),
        **{_key("eval_loss", one.layer): one.loss for one in verdicts},
        **{_key("eval_violation", one.layer): one.violation for one in verdicts},
    }


def show(verdicts: Sequence[LayerVerdict], reference: float) -> None:
    """Print the verdicts as a table."""
    table = Table("layer", "loss", "allowed", "verdict")
    for one in verdicts:
        table.add_row(str(one.layer), f"{one.loss:.4g}", f"{one.allowed:.4g}", one.verdict)
    feasible = "feasible" if constraints.is_feasible(verdicts) else "not feasible"
    which = "every layer" if _is_monotone(verdicts, reference) else "not every layer"
    Console().print(table)
    print(f"constraints on validation data: {feasible}; {which} lowers the loss")


def save(folder: Path, descent: LayerwiseDescent, sigma_x: float | None) -> None:
    """Write λ, slack and the dual optimiser, and σ_x if noise is added, into a checkpoint."""
    torch.save({"descent": descent.state_dict(), "sigma_x": sigma_x}, folder / _FILE)


def load(folder: Path, descent: LayerwiseDescent) -> float | None:
    """Load what `save` wrote, and return σ_x."""
    try:
        state = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no {_FILE}, so λ is not known: the checkpoint was not written by a trainer "
            "with layerwise descent; start without resume_from_checkpoint"
        ) from None
    descent.load_state_dict(state["descent"])
    return state["sigma_x"]


def _is_monotone(verdicts: Sequence[LayerVerdict], reference: float) -> bool:
    return constraints.is_monotone(reference, [one.loss for one in verdicts])


def _key(name: str, layer: int) -> str:
    # Trackers group by what is before the slash.
    return f"{name}/layer_{layer:02}"
