"""The display of a training: a live table on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cudt.method.constraints import Form, allowed_losses
from cudt.runs.info import VerdictInfo

_BAR_WIDTH = 28
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class TrainingView:
    """What a display shows at one moment of a training."""

    title: str
    step: int
    steps: int
    epoch: int
    epochs: int
    reference: float
    rates: list[float]
    warming_up: bool
    train_losses: dict[int, float]
    """By layer; ERM computes only the last one."""
    validation_losses: list[float] | None
    multipliers: list[float] | None
    form: Form = "linear"

    def allowed(self, layer: int) -> float | None:
        """The largest loss that meets the layer's constraint, from the losses shown; None if they do not say."""
        shown = (self.shown(one) for one in range(1, len(self.rates) + 1))
        losses = torch.tensor([math.nan if loss is None else loss for loss in shown], dtype=torch.double)
        allowed = allowed_losses(losses, self.reference, self.rates, self.form)[layer - 1].item()
        return None if math.isnan(allowed) else allowed

    def violation(self, layer: int) -> float | None:
        """How far the loss shown is above the one allowed; None if either is unknown."""
        loss, allowed = self.shown(layer), self.allowed(layer)
        return None if loss is None or allowed is None else loss - allowed

    def shown(self, layer: int) -> float | None:
        """The newest loss of a layer: of this batch if all layers have one, otherwise of the last validation."""
        if self.validation_losses is not None and len(self.train_losses) < len(self.rates):
            return self.validation_losses[layer - 1]
        return self.train_losses.get(layer)


class Display(Protocol):
    """Shows the progress of a training."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, view: TrainingView) -> None:
        """Called every few updates."""

    def epoch_ended(self, view: TrainingView, metric: str) -> None:
        """Called after validation."""


class PlainDisplay:
    """Prints one line per epoch."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, view: TrainingView) -> None:
        pass

    def epoch_ended(self, view: TrainingView, metric: str) -> None:
        self._console.print(epoch_line(view, metric), highlight=False, soft_wrap=True, markup=False)


class LiveDisplay:
    """A table of the layers, redrawn in place: loss, allowed loss, violation and λ."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._metric = ""

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self, view: TrainingView) -> None:
        self._live.update(picture(view, self._metric))

    def epoch_ended(self, view: TrainingView, metric: str) -> None:
        self._metric = metric
        self._live.update(picture(view, metric))


def display_for(console: Console) -> Display:
    """A live table on a terminal, lines elsewhere."""
    return LiveDisplay(console) if console.is_terminal and not console.is_dumb_terminal else PlainDisplay(console)


def epoch_line(view: TrainingView, metric: str) -> str:
    losses = " → ".join(f"{loss:.4g}" for loss in view.validation_losses or [])
    width = len(str(view.epochs))
    line = f"epoch {view.epoch:>{width}}/{view.epochs}  validation loss by layer {losses}  {metric}"
    if view.multipliers is not None:
        line += "  warming up" if view.warming_up else "  λ " + " ".join(f"{value:.3g}" for value in view.multipliers)
    violated = [str(layer) for layer in range(1, len(view.rates) + 1) if (view.violation(layer) or 0.0) > 0]
    return f"{line}  violated: {', '.join(violated) or 'none'}"


def picture(view: TrainingView, metric: str) -> Group:
    """The live display: a heading with a progress bar, and one row per layer."""
    heading = Table.grid(padding=(0, 2))
    phase = "  warming up" if view.warming_up else ""
    heading.add_row(
        Text(view.title, style="bold"),
        f"epoch {view.epoch}/{view.epochs}",
        f"update {view.step}/{view.steps}{phase}",
        ProgressBar(total=view.steps, completed=view.step, width=24),
        metric,
    )
    return Group(heading, layer_table(view))


def layer_table(view: TrainingView) -> Table:
    """One row per layer; green if it meets its constraint, otherwise red."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("layer", "loss", "", "validation", "allowed", "violation", "λ"):
        table.add_column(name, justify="left" if name in ("", "layer") else "right")
    layers = range(1, len(view.rates) + 1)
    top = max([view.reference, *(view.shown(layer) or 0.0 for layer in layers)])
    for layer in layers:
        loss, violation = view.shown(layer), view.violation(layer)
        style = "" if violation is None else "green" if violation <= 0 else "red"
        table.add_row(
            str(layer),
            Text(_number(loss), style=style),
            Text(bar(loss or 0.0, top), style=style),
            _number(view.validation_losses[layer - 1] if view.validation_losses else None),
            _number(view.allowed(layer)),
            Text(_number(violation), style=style),
            _number(view.multipliers[layer - 1] if view.multipliers else None),
        )
    return table


def bar(value: float, top: float) -> str:
    """A horizontal bar with a resolution of an eighth of a character."""
    eighths = round(max(0.0, min(1.0, value / top)) * _BAR_WIDTH * 8) if top > 0 else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def verdict_table(verdicts: Sequence[VerdictInfo]) -> Table:
    """The verdicts of run.json, one row per layer."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("layer", "loss", "allowed", "violation", "± 1 s.e.", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right")
    colours = {"met": "green", "borderline": "green", "relaxed": "yellow", "violated": "red"}
    for row in verdicts:
        numbers = [f"{value:.4g}" for value in (row.loss, row.allowed, row.violation, row.standard_error)]
        table.add_row(str(row.layer), *numbers, Text(row.verdict, style=colours.get(row.verdict, "")))
    return table
