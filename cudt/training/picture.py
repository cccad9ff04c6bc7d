"""What a terminal shows of a training: the live picture, and the verdicts at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cudt.runs.info import VerdictInfo
from cudt.runs.run import Run
from cudt.training.view import TrainingView

#: Columns that a narrow terminal has no room for, the first to go first: what is allowed is the
#: loss − the violation.
_LEFT_OUT = ("allowed", "validation", "bar")
_LEFT_OUT_OF_VERDICTS = ("allowed", "± 1 s.e.")
#: In characters: the bars that show losses.
_NARROWEST_BAR, _WIDEST_BAR = 8, 28
#: More characters than any table needs.
_ROOM = 1000
#: How a negative weight looks.
_MARK, _NEGATIVE = "▼", "bold yellow"


@dataclass(frozen=True)
class Picture:
    """The live display: what is trained and how far it is, and one row per layer, as far as the
    terminal has room.
    """

    view: TrainingView
    metric: str = ""
    pace: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = self.view
        phase = ["warming up"] if view.warming_up else []
        position = [
            f"epoch {view.epoch}/{view.epochs}",
            f"update {view.step}/{view.steps}",
            *phase,
            self.pace,
        ]
        progress = Table.grid()
        progress.add_row(ProgressBar(total=view.steps, completed=view.step, width=60))
        above: list[RenderableType] = [
            Text.assemble((view.title, "bold"), f"  {self.metric}" if self.metric else ""),
            Text("  ".join(part for part in position if part)),
            progress,
        ]
        below = [negative_note()] if view.negative else []
        taken = sum(len(console.render_lines(one, options)) for one in [*above, *below])
        # One line for the headings, and one for the cursor.
        layers = shown_layers(len(view.rates), options.max_height - taken - 2)
        yield from above
        yield Fitting(lambda left_out: layer_table(view, left_out, layers), _LEFT_OUT)
        yield from below


@dataclass(frozen=True)
class Fitting:
    """A table without the columns for which the terminal is too narrow, so that no number is cut
    off.
    """

    make: Callable[[Collection[str]], Table]
    """Makes the table without some columns."""
    optional: Sequence[str]
    """Columns that may be left out, the first to go first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for count in range(len(self.optional) + 1):
            table = self.make(self.optional[:count])
            # Measured where there is room: a table that has to shrink says that it can.
            if (
                console.measure(table, options=options.update_width(_ROOM)).minimum
                <= options.max_width
            ):
                break
        yield table


def shown_layers(n_layers: int, room: int) -> list[int | None]:
    """The layers that fit into `room` rows: the first and the last ones, with None for those
    between.
    """
    if n_layers <= room:
        return [*range(1, n_layers + 1)]
    last = max(1, (room - 1) // 2)
    first = max(1, room - 1 - last)
    return [*range(1, first + 1), None, *range(n_layers - last + 1, n_layers + 1)]


def layer_table(
    view: TrainingView, left_out: Collection[str] = (), shown: Sequence[int | None] | None = None
) -> Table:
    """One row per layer; green if the layer meets its constraint, otherwise red. All bars have the
    same scale.

    `shown` are the layers to draw, by default all; None is a row that stands for layers that are
    not drawn.
    """
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
    for layer in layers if shown is None else shown:
        cells = {} if layer is None else _cells(view, layer, top=max([view.reference, *losses]))
        table.add_row(*(cells.get(name, "⋮" if name == "layer" else "") for name in names))
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
        "validation": _number(
            view.validation_losses[layer - 1] if view.validation_losses else None
        ),
        "allowed": _number(view.allowed(layer)),
        "violation": Text(_number(violation), style=style),
        "λ": _number(view.multipliers[layer - 1] if view.multipliers else None),
        "w": weight_text(view.weights[layer - 1] if view.weights else None),
    }


def verdict_table(
    reference: float, verdicts: Sequence[VerdictInfo], dual: DualAtEnd | None = None
) -> Fitting:
    """f_0 and the verdicts of run.json, one row per layer, with λ and w of a constrained run."""
    return Fitting(
        lambda left_out: _verdict_table(reference, verdicts, dual, left_out), _LEFT_OUT_OF_VERDICTS
    )


def _verdict_table(
    reference: float,
    verdicts: Sequence[VerdictInfo],
    dual: DualAtEnd | None,
    left_out: Collection[str],
) -> Table:
    names = [
        "layer",
        "loss",
        "allowed",
        "violation",
        "± 1 s.e.",
        *(["λ", "w"] if dual else []),
        "verdict",
    ]
    names = [name for name in names if name not in left_out]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    colours = {"met": "green", "borderline": "green", "relaxed": "yellow", "violated": "red"}
    rows: list[dict[str, RenderableType]] = [
        {"layer": "0", "loss": _number(reference), "verdict": "f_0"}
    ]
    for row in verdicts:
        cells: dict[str, RenderableType] = {
            "layer": str(row.layer),
            "loss": _number(row.loss),
            "allowed": _number(row.allowed),
            "violation": _number(row.violation),
            "± 1 s.e.": _number(row.standard_error),
            "verdict": Text(row.verdict, style=colours.get(row.verdict, "")),
        }
        if dual:
            cells |= {
                "λ": _number(dual.multipliers.get(row.layer)),
                "w": weight_text(dual.weights.get(row.layer)),
            }
        rows.append(cells)
    for one in rows:
        table.add_row(*(one.get(name, "") for name in names))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def weight_text(value: float | None) -> Text:
    """A layer's weight w_l; a negative one is marked, also where colours do not show."""
    if value is None:
        return Text("")
    return (
        Text(f"{_number(value)} {_MARK}", style=_NEGATIVE)
        if value < 0
        else Text(f"{_number(value)}  ")
    )


def negative_note() -> Text:
    """What the mark of a negative weight means."""
    return Text(f"{_MARK} negative weight w: the update raises this layer's loss", style=_NEGATIVE)


@dataclass(frozen=True)
class DualAtEnd:
    """λ_l and w_l of each layer at the end of an epoch, by layer."""

    multipliers: dict[int, float]
    weights: dict[int, float]


def dual_at_end(run: Run) -> DualAtEnd | None:
    """λ and w at the end of the run's own epoch, from run.json; None without constraints."""
    import torch

    from cudt.method.constraints import effective_weights
    from cudt.method.objectives import objective_class

    info, settings = run.finished_info(), run.recipe.settings
    recorded = None if info.multipliers is None else getattr(info.multipliers, run.weights)
    if recorded is None or not objective_class(settings.objective).is_constrained:
        return None
    multipliers = torch.tensor(recorded, dtype=torch.double)
    weights = effective_weights(
        multipliers, info.rates, settings.descent.form, settings.descent.gradient
    )
    return DualAtEnd(dict(enumerate(recorded, 1)), dict(enumerate(weights.tolist(), 1)))
