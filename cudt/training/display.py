"""What a terminal shows of a training: a bar for the updates of an epoch, a line per validation,
and the verdicts at its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from cudt.config import plugins
from cudt.method.constraints import FAILING, Verdict, effective_weights
from cudt.method.objectives import Objective
from cudt.runs.run import Run
from cudt.utils.text import ranges


class Display:
    """Shows the progress of a training; without a terminal, only the lines of validations."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(
            "{task.description}",
            *columns,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def update(self, step: int, per_epoch: int, losses: Sequence[float]) -> None:
        """Called after each update with the losses that it computed, that of layer L the last."""
        epoch, done = divmod(step - 1, per_epoch)
        ends = losses if len(losses) == 1 else [losses[0], losses[-1]]
        what = f"epoch {epoch + 1}  training loss {' … '.join(map(_number, ends))}"
        self._bar.update(self._task, description=what, completed=done + 1, total=per_epoch)

    def validated(self, line: str) -> None:
        """Called after each validation, with `validation_line`."""
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def validation_line(
    objective: Objective, losses: Sequence[float], metric: str, verdicts: Sequence[Verdict]
) -> str:
    """f_0 → f_1 → … → f_L, the metric, λ, and the layers that fail or have negative weight."""
    descent = objective.descent
    parts = ["f " + " → ".join(map(_number, [descent.reference, *losses])), metric]
    marked: dict[str, list[bool]] = {word: [one == word for one in verdicts] for word in FAILING}
    if objective.constrains:
        parts.append("λ " + " ".join(f"{one:.3g}" for one in descent.multiplier_values.tolist()))
        marked["negative weight"] = (descent.effective_weights() < 0).tolist()
    for word, layers in marked.items():
        if any(layers):
            parts.append(f"{word}: {ranges(n for n, is_so in enumerate(layers, 1) if is_so)}")
    return "  ".join(parts)


def verdict_table(run: Run) -> pd.DataFrame:
    """f_0 and the verdict on each layer of a finished run, with λ and w of a constrained one."""
    info, settings = run.finished_info(), run.recipe.settings
    table = pd.DataFrame([one.model_dump() for one in info.verdicts])
    table = table.rename(columns={"standard_error": "± 1 s.e."}).drop(columns="slack")
    multipliers = info.multipliers and getattr(info.multipliers, run.weights)
    if plugins.has("objective", settings.objective, "is_constrained") and multipliers:
        values, descent = torch.tensor(multipliers, dtype=torch.double), settings.descent
        weights = effective_weights(values, info.rates, descent.form, descent.gradient)
        table.insert(5, "λ", multipliers)
        table.insert(6, "w", weights.tolist())
    texts = table.map(lambda value: _number(value) if isinstance(value, float) else value)
    start = {"layer": 0, "loss": _number(info.reference), "verdict": "f_0"}
    return pd.concat([pd.DataFrame([start], columns=texts.columns), texts])


def _number(value: float) -> str:
    return f"{value:.4g}"
