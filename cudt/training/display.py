"""The display of a training: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from cudt.method.constraints import FAILING
from cudt.training.picture import Picture
from cudt.training.view import TrainingView
from cudt.utils.progress import duration
from cudt.utils.ranges import ranges

#: Without a terminal, seconds between two lines within an epoch; a quarter of an epoch gets a line
#: sooner if it took at least the shorter time, so that a long training is never silent and a short
#: one prints little.
_INTERVAL, _SHORTEST = 30.0, 5.0
Clock = Callable[[], float]


class Pace:
    """How long an update takes on average, validation included, and how much time is left."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._before: int | None = None

    def text(self, view: TrainingView) -> str:
        """For example `2.1 s/update, 0:41:00 left`; call it after each update."""
        if self._before is None:
            # A resumed training does not begin at update 1.
            self._before = view.step - 1
        seconds = (self._clock() - self._began) / max(view.step - self._before, 1)
        return f"{seconds:.3g} s/update, {duration(seconds * (view.steps - view.step))} left"


class Display(Protocol):
    """Shows the progress of a training."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, view: TrainingView) -> None:
        """Called after each update."""

    def epoch_ended(self, view: TrainingView, metric: str) -> None:
        """Called after each validation: at the end of an epoch, and within it with
        `training.validate_every`.
        """


class PlainDisplay:
    """Prints a line per validation, and lines within an epoch that takes long."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._pace, self._printed, self._quarters = Pace(self._clock), self._clock(), 0

    def __enter__(self) -> PlainDisplay:
        # One display may show several trainings.
        self._begin()
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, view: TrainingView) -> None:
        pace, waited = self._pace.text(view), self._clock() - self._printed
        # Of an epoch, counted from the beginning of the training; the line of the epoch itself ends
        # the fourth.
        quarters = 4 * view.epochs * (view.step - 1) // view.steps
        if waited >= _INTERVAL or (waited >= _SHORTEST and quarters > self._quarters):
            self._print(update_line(view, pace), quarters)

    def epoch_ended(self, view: TrainingView, metric: str) -> None:
        self._print(epoch_line(view, metric), 4 * view.epochs * view.step // view.steps)

    def _print(self, line: str, quarters: int) -> None:
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)
        self._printed, self._quarters = self._clock(), quarters


class LiveDisplay:
    """A table of the layers, redrawn in place: loss, allowed loss, violation, λ and w."""

    def __init__(self, console: Console) -> None:
        self._begin()
        # Drawn when the screen is refreshed, not after each of perhaps hundreds of updates a
        # second.
        self._live = Live(
            console=console, refresh_per_second=8, transient=True, get_renderable=self._picture
        )

    def _begin(self) -> None:
        self._view: TrainingView | None = None
        self._metric = self._pace_text = ""
        self._pace = Pace()

    def __enter__(self) -> LiveDisplay:
        self._begin()
        self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self, view: TrainingView) -> None:
        self._view, self._pace_text = view, self._pace.text(view)

    def epoch_ended(self, view: TrainingView, metric: str) -> None:
        self._view, self._metric = view, metric

    def _picture(self) -> RenderableType:
        return "" if self._view is None else Picture(self._view, self._metric, self._pace_text)


def display_for(console: Console) -> Display:
    """A live table on a terminal, lines elsewhere."""
    return (
        LiveDisplay(console)
        if console.is_terminal and not console.is_dumb_terminal
        else PlainDisplay(console)
    )


def update_line(view: TrainingView, pace: str) -> str:
    """Position, losses of the batch and pace, for a log."""
    losses = " → ".join(f"{loss:.4g}" for loss in view.train_losses.values())
    of = (
        "by layer"
        if len(view.train_losses) > 1
        else f"of layer {max(view.train_losses, default=len(view.rates))}"
    )
    phase = "  warming up" if view.warming_up else ""
    return f"{_epoch(view)}  update {view.step}/{view.steps}  training loss {of} {losses}{phase}  {pace}"


def epoch_line(view: TrainingView, metric: str) -> str:
    """Validation losses, metric and multipliers at the end of an epoch or within it, for a log."""
    losses = " → ".join(f"{loss:.4g}" for loss in view.validation_losses or [])
    within = "" if view.ends_epoch else f"  update {view.step}/{view.steps}"
    line = f"{_epoch(view)}{within}  validation loss by layer {losses}  {metric}"
    if view.multipliers is not None:
        line += (
            "  warming up"
            if view.warming_up
            else "  λ " + " ".join(f"{value:.3g}" for value in view.multipliers)
        )
    if view.negative:
        line += f"  negative weight: {ranges(view.negative)}"
    return f"{line}  {_failing(view)}".rstrip()


def _failing(view: TrainingView) -> str:
    """The layers whose constraints fail, in the words of the verdict at the end: `violated: 1–3  relaxed: 4`."""
    if view.verdicts is None:
        return ""
    by_word = {
        word: [layer for layer, one in enumerate(view.verdicts, 1) if one == word]
        for word in FAILING
    }
    return (
        "  ".join(f"{word}: {ranges(layers)}" for word, layers in by_word.items() if layers)
        or "violated: none"
    )


def _epoch(view: TrainingView) -> str:
    return f"epoch {view.epoch:>{len(str(view.epochs))}}/{view.epochs}"
