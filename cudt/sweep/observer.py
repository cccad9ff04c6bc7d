"""Watch a sweep in its storage, whoever runs its trials, and show what happens."""

from __future__ import annotations

from collections.abc import Sequence

from cudt.sweep.display import Cell, SweepDisplay
from cudt.sweep.holder import host_of
from cudt.sweep.messages import CellProgress
from cudt.sweep.queue import Key, Trial
from cudt.sweep.study import ArmStudy


class Observer:
    """Compares the trials with those of the last look."""

    def __init__(self, studies: Sequence[ArmStudy], display: SweepDisplay) -> None:
        self._studies, self._display = studies, display
        self._seen: dict[tuple[str, Key], Trial] = {}
        self.n_failed = 0
        """Trials that failed since the beginning of the watch."""
        self._remember()

    @property
    def n_open(self) -> int:
        """Trials that are waiting or running."""
        return sum(not trial.has_ended for trial in self._seen.values())

    def look(self) -> bool:
        """Show what has changed; returns whether a trial has ended."""
        before = dict(self._seen)
        self._remember()
        has_ended = False
        for (study, cell), trial in self._seen.items():
            earlier = before.get((study, cell))
            if trial != earlier:
                self._show(self._cell(study, trial), earlier, trial)
                has_ended |= trial.has_ended
        return has_ended

    def _remember(self) -> None:
        for study in self._studies:
            # What has ended does not change, unless another command retries it.
            known = [trial for (name, _), trial in self._seen.items() if name == study.name]
            if not known or any(not trial.has_ended for trial in known):
                self._seen |= {(study.name, trial.cell): trial for trial in study.trials()}

    def _cell(self, study: str, trial: Trial) -> Cell:
        described = next(one for one in self._studies if one.name == study).describe(trial)
        return Cell((study, trial.cell), described, host_of(trial.holder or {}))

    def _show(self, cell: Cell, earlier: Trial | None, trial: Trial) -> None:
        for text in trial.warnings:
            self._display.warn(text)
        if earlier is not None and trial.facts.get("deaths", 0) > earlier.facts.get("deaths", 0):
            self._display.ended(cell)
            if trial.state != "failed":
                self._display.died(cell, trial.facts.get("died", ""))
        if trial.state == "running":
            progress = trial.progress
            self._display.running(
                cell, CellProgress(progress["step"], progress["steps"], progress["loss"]) if progress else None
            )
            return
        self._display.ended(cell)
        if trial.state == "finished":
            self._display.finished(cell, trial.score or 0.0)
        elif trial.state == "pruned":
            self._display.pruned(cell, trial.facts["reason"])
        elif trial.state == "failed":
            self.n_failed += 1
            self._display.failed(cell, trial.facts["reason"])
        elif earlier is not None and earlier.state == "running" and "died" not in trial.facts:
            self._display.interrupted(cell)
