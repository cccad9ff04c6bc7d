"""What a terminal shows of a training: the live picture, and the verdicts at its end."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cudt.runs.info import VerdictInfo
from cudt.training.view import TrainingView

#: Columns that a narrow terminal has no room for, the first to go first: what is allowed is the loss − the violation.
_LEFT_OUT = ("allowed", "validation", "bar")
#: In characters: the bars that show losses.
_NARROWEST_BAR, _WIDEST_BAR = 8, 28
#: More characters than any table needs.
_ROOM = 1000
_NEGATIVE = "bold yellow"


def picture(view: TrainingView, metric: str, pace: str = "") -> Group:
    """The live display: what is trained and how far it is, and one row per layer."""
    phase = ["warming up"] if view.warming_up else []
    position = [f"epoch {view.epoch}/{view.epochs}", f"update {view.step}/{view.steps}", *phase, pace]
    progress = Table.grid()
    progress.add_row(ProgressBar(total=view.steps, completed=view.step, width=60))
    note = "↑ negative weight w: the update raises this layer's loss" if view.negative else ""
    return Group(
        Text.assemble((view.title, "bold"), f"  {metric}" if metric else ""),
        Text("  ".join(part for part in position if part)),
        progress,
        LayerTable(view),
        *([Text(note, style=_NEGATIVE)] if note else []),
    )


class LayerTable:
    """`layer_table` without the columns for which the terminal is too narrow, so that no number is cut off."""

    def __init__(self, view: TrainingView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for count in range(len(_LEFT_OUT) + 1):
            table = layer_table(self._view, _LEFT_OUT[:count])
            # Measured where there is room: a table that has to shrink says that it can.
            if console.measure(table, options=options.update_width(_ROOM)).minimum <= options.max_width:
                break
        yield table


def layer_table(view: TrainingView, left_out: Collection[str] = ()) -> Table:
    """One row per layer; green if the layer meets its constraint, otherwise red. All bars have the same scale."""
    names = ["layer", "loss", "bar", "validation", "allowed", "violation"]
    names += ["λ", "w"] if view.multipliers is not None else []
    names = [name for name in names if name not in left_out]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        if name == "bar":
            table.add_column("", min_width=_NARROWEST_BAR, max_width=_WIDEST_BAR)
        else:
            table.add_column(name, justify="left" if name == "layer" else "right", no_wrap=True)
    layers = range(1, len(view.rates) + 1)
    losses = [loss for layer in layers if math.isfinite(loss := view.shown(layer) or 0.0)]
    for layer in layers:
        cells = _cells(view, layer, top=max([view.reference, *losses]))
        table.add_row(*(cells[name] for name in names))
    return table


def _cells(view: TrainingView, layer: int, top: float) -> dict[str, RenderableType]:
    """The row of a layer by column; `top` is the loss that the longest bar stands for."""
    loss, violation = view.shown(layer), view.violation(layer)
    style = "" if violation is None else "green" if violation <= 0 else "red"
    drawn = 0.0 if loss is None or math.isnan(loss) else loss
    return {
        "layer": str(layer),
        "loss": Text(_number(loss), style=style),
        "bar": Bar(top, 0, drawn, color=style or "default"),
        "validation": _number(view.validation_losses[layer - 1] if view.validation_losses else None),
        "allowed": _number(view.allowed(layer)),
        "violation": Text(_number(violation), style=style),
        "λ": _number(view.multipliers[layer - 1] if view.multipliers else None),
        "w": _weight(view.weights[layer - 1] if view.weights else None),
    }


def verdict_table(
    reference: float, verdicts: Sequence[VerdictInfo], dual: Mapping[str, Mapping[int, float]] | None = None
) -> Table:
    """f_0 and the verdicts of run.json, one row per layer; `dual` has a `multiplier` and a `weight` by layer."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    names = ["layer", "loss", "allowed", "violation", "± 1 s.e.", *(["λ", "w"] if dual else []), "verdict"]
    for name in names:
        table.add_column(name, justify="left" if name == "verdict" else "right")
    colours = {"met": "green", "borderline": "green", "relaxed": "yellow", "violated": "red"}
    table.add_row("0", _number(reference), *[""] * (len(names) - 3), "f_0, the reference")
    for row in verdicts:
        numbers = [_number(value) for value in (row.loss, row.allowed, row.violation, row.standard_error)]
        cells: list[RenderableType] = [str(row.layer), *numbers]
        if dual:
            cells += [_number(dual["multiplier"].get(row.layer)), _weight(dual["weight"].get(row.layer))]
        table.add_row(*cells, Text(row.verdict, style=colours.get(row.verdict, "")))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _weight(value: float | None) -> Text:
    """A layer's weight w_l; a negative one is marked, because the update raises the layer's loss."""
    return Text(f"↑{value:.4g}", style=_NEGATIVE) if value is not None and value < 0 else Text(_number(value))
