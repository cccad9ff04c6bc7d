"""What a terminal shows of a training: a line per validation, and the verdicts at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cudt.method.constraints import FAILING, Verdict, effective_weights
from cudt.method.objectives import Objective, objective_class
from cudt.runs.run import Run
from cudt.utils.ranges import ranges

#: Seconds between two lines within an epoch.
_INTERVAL = 30.0
_COLOURS = {"met": "green", "borderline": "green", "relaxed": "yellow", "violated": "red"}
NEGATIVE_NOTE = "▼ negative weight w: the update raises this layer's loss"


class Display(Protocol):
    """Shows the progress of a training."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, step: int, steps: int, losses: Sequence[float]) -> None:
        """Called after each of `steps` updates, with the losses that it computed; that of layer L
        is the last.
        """

    def validated(self, line: str) -> None:
        """Called after each validation, with `validation_line`."""


class ConsoleDisplay:
    """A line per validation, and lines in between where these take long."""

    def __init__(self, console: Console) -> None:
        self._console, self._printed = console, time.monotonic()

    def __enter__(self) -> None:
        self._printed = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, step: int, steps: int, losses: Sequence[float]) -> None:
        """Print a line now and then."""
        if time.monotonic() - self._printed > _INTERVAL:
            self.validated(f"update {step}/{steps}  training loss {_arrows(losses)}")

    def validated(self, line: str) -> None:
        """Print the line."""
        self._printed = time.monotonic()
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def display_for(console: Console) -> Display:
    """The display of a training on a console."""
    return ConsoleDisplay(console)


def validation_line(
    objective: Objective, losses: Sequence[float], metric: str, verdicts: Sequence[Verdict]
) -> str:
    """f_0 → f_1 → … → f_L, the metric, λ, and the layers that fail or have negative weight."""
    descent, parts = (
        objective.descent,
        [f"f {_arrows([objective.descent.reference, *losses])}", metric],
    )
    marked: dict[str, list[bool]] = {word: [one == word for one in verdicts] for word in FAILING}
    if objective.constrains:
        parts.append("λ " + " ".join(f"{one:.3g}" for one in descent.multiplier_values.tolist()))
        marked["negative weight"] = (descent.effective_weights() < 0).tolist()
    for word, layers in marked.items():
        if any(layers):
            parts.append(f"{word}: {ranges(n for n, is_so in enumerate(layers, 1) if is_so)}")
    return "  ".join(parts)


def verdict_table(run: Run) -> Table:
    """f_0 and the verdict on each layer of a finished run, with λ and w of a constrained one."""
    info, settings = run.finished_info(), run.recipe.settings
    columns = ["layer", "loss", "allowed", "violation", "± 1 s.e."]
    rows = [
        [str(one.layer), *map(_number, (one.loss, one.allowed, one.violation, one.standard_error))]
        for one in info.verdicts
    ]
    multipliers = info.multipliers and getattr(info.multipliers, run.weights)
    if objective_class(settings.objective).is_constrained and multipliers and info.rates:
        values, descent = torch.tensor(multipliers, dtype=torch.double), settings.descent
        weights = effective_weights(values, info.rates, descent.form, descent.gradient).tolist()
        columns += ["λ", "w"]
        for row, multiplier, weight in zip(rows, multipliers, weights, strict=True):
            row += [_number(multiplier), weight_text(weight)]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict")
    table.add_row("0", _number(info.reference), *[""] * (len(columns) - 2), "f_0")
    for row, one in zip(rows, info.verdicts, strict=True):
        table.add_row(*row, Text(one.verdict, _COLOURS[one.verdict]))
    table.caption = NEGATIVE_NOTE if any("▼" in row[-1] for row in rows) else None
    return table


def weight_text(weight: float | None) -> str:
    """A layer's weight w_l; a negative one is marked."""
    return "" if weight is None else f"{_number(weight)} {'▼' if weight < 0 else ' '}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _arrows(losses: Sequence[float]) -> str:
    return " → ".join(map(_number, losses))
