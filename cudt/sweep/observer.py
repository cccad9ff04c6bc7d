"""Watch a sweep in its storage, whoever runs its trials, and show what happens."""

from __future__ import annotations

from collections.abc import Sequence

from cudt.sweep.display import Cell, SweepDisplay
from cudt.sweep.holder import host_of
from cudt.sweep.messages import CellProgress
from cudt.sweep.queue import Key, Trial, TrialQueue


class Observer:
    """Compares the trials with those of the last look."""

    def __init__(self, queues: Sequence[TrialQueue], display: SweepDisplay) -> None:
        self._queues, self._display = {queue.name: queue for queue in queues}, display
        self._seen: dict[tuple[str, Key], Trial] = {}
        self._done: set[str] = set()
        self.n_failed = 0
        """Trials that failed since the beginning of the watch."""
        self._remember()

    @property
    def n_open(self) -> int:
        """Trials that are waiting or running."""
        return sum(not trial.has_ended for trial in self._seen.values())

    @property
    def n_done(self) -> int:
        """Trials that have ended."""
        return len(self._seen) - self.n_open

    def look(self) -> set[str]:
        """Show what has changed; returns the names of the queues in which a trial has ended."""
        before = dict(self._seen)
        self._remember()
        ended: set[str] = set()
        for (name, cell), trial in self._seen.items():
            earlier = before.get((name, cell))
            if trial != earlier:
                self._show(self._queues[name], earlier, trial)
                ended |= {name} if trial.has_ended else set()
        return ended

    def _remember(self) -> None:
        # What has ended does not change, unless another command retries it.
        for name in [name for name in self._queues if name not in self._done]:
            queue = self._queues[name]
            self._seen |= {(name, trial.cell): trial for trial in queue.trials()}
            if queue.is_done:
                self._done.add(name)

    def _show(self, queue: TrialQueue, earlier: Trial | None, trial: Trial) -> None:
        title = f"{queue.title}, " if queue.title else ""
        cell = Cell(
            (queue.name, trial.cell), title + queue.describe(trial), host_of(trial.holder or {})
        )
        for text in trial.warnings:
            self._display.warn(text)
        if earlier is not None and trial.facts.get("deaths", 0) > earlier.facts.get("deaths", 0):
            self._display.ended(cell)
            if trial.state != "failed":
                # A quick trial may have ended since: then only the number of deaths is left.
                self._display.died(cell, trial.facts.get("died", "unexpectedly"))
        if trial.state == "running":
            progress = {key: value for key, value in trial.progress.items() if key != "seconds"}
            self._display.running(cell, CellProgress(**progress) if progress else None)
            return
        self._display.ended(cell)
        if trial.state == "finished":
            self._display.finished(cell, queue.outcome(trial))
        elif trial.state == "pruned":
            self._display.pruned(cell, trial.facts["reason"])
        elif trial.state == "failed":
            self.n_failed += 1
            self._display.failed(cell, trial.facts["reason"])
        elif earlier is not None and earlier.state == "running" and "died" not in trial.facts:
            self._display.interrupted(cell)
