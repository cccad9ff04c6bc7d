"""Trials that any number of workers share: one Optuna study, in which every cell is one trial.

A cell is something to do exactly once: a run to train, an evaluation to make. Its trial is enqueued
with the cell's key as user attribute `cell`, waits until a worker starts it, and goes back to
waiting if that worker cannot finish it. Several processes may enqueue the same cell at the same
time. Optuna numbers trials in the order of their creation, so the trial with the lowest number is
the cell; another one does not count.

User attributes of a trial: `cell`; `holder` (holder.py); `lease` (lease.py); `facts`, for the
tables; `progress`, `warnings`; `retry_of`, the number of the failed trial that it repeats;
`settings`, those drawn for it, which no other trial has (study.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from cudt.sweep.definition import Parameters
from cudt.sweep.holder import Holder, is_mine
from cudt.sweep.lease import LEASE
from cudt.sweep.shared import SharedStorage

#: Workers that may die while a cell makes no progress before it fails: the cell itself may be what
#: kills them.
MAX_DEATHS = 5
#: The number or name of a cell in its study.
Key = int | str
Direction = Literal["minimize", "maximize"]

#: Not the module's generator: training seeds it, and forked workers have the same.
_chance = random.SystemRandom()
_STATES = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
}


class NotACellError(Exception):
    """A trial that does not count: a surplus one, a second one of its cell, or one with settings
    that exist.
    """


class NothingWaitsError(Exception):
    """Other workers have taken all trials that were waiting."""


@dataclass(frozen=True)
class Trial:
    """The trial of a cell: waiting, running or ended."""

    number: int
    trial_id: int
    cell: Key
    state: str
    """waiting, running, finished, failed or pruned."""
    parameters: Parameters
    score: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What goes into the tables; of a trial that has not ended, the seconds and deaths so far."""
    holder: Holder | None = None
    """The process that runs it."""
    progress: dict[str, Any] = field(default_factory=dict)
    """step, steps, loss and seconds of the running attempt."""
    warnings: tuple[str, ...] = ()
    """Warnings about the data."""

    @property
    def has_ended(self) -> bool:
        return self.state not in ("waiting", "running")


class _Study(optuna.Study):
    """A study that starts waiting trials in the order of its queue, and makes none of its own."""

    def __init__(
        self, name: str, storage: BaseStorage, waiting: Callable[[], Iterable[int]]
    ) -> None:
        super().__init__(name, storage)
        self._waiting = waiting

    def _pop_waiting_trial_id(self) -> int:
        for trial_id in self._waiting():
            with contextlib.suppress(UpdateFinishedTrialError):
                if self._storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                    return trial_id
        raise NothingWaitsError


class TrialQueue(ABC):
    """The cells of one study."""

    title = ""
    """What the trials belong to, where trials of several kinds are shown."""

    def __init__(self, storage: BaseStorage, name: str, direction: Direction = "minimize") -> None:
        self.storage, self.name = storage, name
        try:
            self.study = _Study(name, storage, self._in_order)
        except KeyError:
            optuna.create_study(
                storage=storage, study_name=name, direction=direction, load_if_exists=True
            )
            self.study = _Study(name, storage, self._in_order)
        self._read: list[FrozenTrial] = []
        self._has_read = False

    @abstractmethod
    def cells(self) -> Iterable[tuple[Key, Parameters]]:
        """Every cell, and the parameters that its trial is enqueued with."""

    @abstractmethod
    def describe(self, trial: Trial) -> str:
        """A trial in one line."""

    def outcome(self, trial: Trial) -> str:
        """The result of a finished trial in some words."""
        return f"score {trial.score:.5g}"

    def draw(self, trial: optuna.Trial) -> None:  # noqa: B027 - most queues have nothing to draw
        """Choose the parameters of a trial that was started; raise NotACellError if they exist
        already.
        """

    # ------------------------------------------------------------ reading

    def refresh(self) -> None:
        """Read the trials. Everything but `trials` and `left` goes by the last reading, because
        reading is slow.
        """
        self._read, self._has_read = self.study.get_trials(deepcopy=False), True

    def trials(self) -> list[Trial]:
        """The trial of every cell that has one, as it is now, in order of their numbers."""
        self.refresh()
        return self.known()

    def known(self) -> list[Trial]:
        """The same as it was at the last reading."""
        return [self._as_trial(cell, trial) for cell, trial in self._wanted()]

    @property
    def left(self) -> int:
        """Cells that have not ended, as it is now."""
        self.refresh()
        return self.n_left

    @property
    def is_done(self) -> bool:
        """Whether every cell has ended."""
        return self._has_read and self.n_left == 0

    @property
    def n_left(self) -> int:
        """Cells that have not ended."""
        return len(list(self.cells())) - sum(
            trial.state.is_finished() for _, trial in self._wanted()
        )

    @property
    def n_begun(self) -> int:
        """Cells that were started."""
        if not self._has_read:
            self.refresh()
        return sum(trial.state != TrialState.WAITING for _, trial in self._wanted())

    @property
    def has_waiting(self) -> bool:
        """Whether a trial is waiting for a worker."""
        return any(trial.state == TrialState.WAITING for _, trial in self._wanted())

    def _in_order(self) -> Iterator[int]:
        """The waiting trials in the order in which this process tries to start them.

        The first one first. While others run trials, any of the first few, because all would try
        the same one; and the more of them, the more often somebody else was faster.
        """
        trials = [trial for _, trial in self._wanted()]
        waiting = [trial._trial_id for trial in trials if trial.state == TrialState.WAITING]
        holders = [
            trial.user_attrs.get("holder") for trial in trials if trial.state == TrialState.RUNNING
        ]
        few = (
            2 * sum(holder is not None and not is_mine(holder, os.getpid()) for holder in holders)
            or 1
        )
        while waiting:
            yield waiting.pop(_chance.randrange(min(few, len(waiting))))
            few *= 4

    def _wanted(self) -> list[tuple[Key, FrozenTrial]]:
        """The cells that have a trial, in order of their numbers; others may be left from a larger
        budget.
        """
        wanted = {cell for cell, _ in self.cells()}
        found = [(cell, trial) for cell, trial in self._live().items() if cell in wanted]
        return sorted(found, key=lambda pair: pair[1].number)

    def _live(self) -> dict[Key, FrozenTrial]:
        """The trial that is the cell, by the cell's key."""
        trials = [trial for trial in self._read if not self._is_abandoned(trial)]
        repeated = {trial.user_attrs.get("retry_of") for trial in trials}
        found: dict[Key, FrozenTrial] = {}
        for trial in trials:
            if (cell := trial.user_attrs.get("cell")) is not None and trial.number not in repeated:
                found.setdefault(cell, trial)
        return found

    def _is_abandoned(self, trial: FrozenTrial) -> bool:
        """Whether a trial ended without counting: it has failed without a reason."""
        facts = self._facts(trial)
        return trial.state == TrialState.FAIL and (
            "reason" not in facts or bool(facts.get("retried"))
        )

    def _facts(self, trial: FrozenTrial) -> dict[str, Any]:
        return dict(trial.user_attrs.get("facts") or {})

    def _as_trial(self, cell: Key, trial: FrozenTrial) -> Trial:
        # A waiting trial has no parameters yet, except those it was enqueued with.
        parameters = self.exact(trial.params or trial.system_attrs.get("fixed_params", {}))
        return Trial(
            trial.number,
            trial._trial_id,
            cell,
            _STATES.get(trial.state, "failed"),
            parameters,
            trial.value if trial.state == TrialState.COMPLETE else None,
            self._facts(trial),
            trial.user_attrs.get("holder"),
            trial.user_attrs.get("progress") or {},
            tuple(trial.user_attrs.get("warnings", ())),
        )

    def exact(self, drawn: dict[str, Any]) -> Parameters:
        """Parameters as the cell's definition writes them."""
        return drawn

    # ------------------------------------------------------------ writing

    def top_up(self) -> None:
        """Read the trials, and enqueue every cell that has none."""
        self.refresh()
        self.fill()

    def fill(self) -> None:
        """Enqueue every cell that had no trial at the last reading; whoever does it at the same
        time adds no second.
        """
        while missing := self._missing():
            if isinstance(self.storage, SharedStorage):
                self.storage.enqueue(self.study._study_id, missing, len(self._read))
            else:
                for trial in missing:
                    self.storage.create_new_trial(self.study._study_id, trial)
            self.refresh()

    def _missing(self) -> Sequence[FrozenTrial]:
        live = self._live()
        return [
            optuna.trial.create_trial(
                state=TrialState.WAITING,
                system_attrs={"fixed_params": parameters},
                user_attrs={"cell": cell},
            )
            for cell, parameters in self.cells()
            if cell not in live
        ]

    def retry_failed(self) -> None:
        """Enqueue every failed cell again, with the same parameters."""
        self.repeat(trial for trial in self.trials() if trial.state == "failed")

    def repeat(self, trials: Iterable[Trial]) -> None:
        """Enqueue the cells of some trials that have ended again, with the same parameters."""
        for trial in list(trials):
            if trial.has_ended:
                again = {"cell": trial.cell, "retry_of": trial.number}
                self.study.enqueue_trial(trial.parameters, user_attrs=again)

    def drop_surplus(self) -> None:
        """End the waiting trials of cells that are no longer wanted: the budget is smaller now."""
        self.refresh()
        wanted = {cell for cell, _ in self.cells()}
        for cell, trial in self._live().items():
            is_surplus = cell not in wanted and trial.state == TrialState.WAITING
            # Started first, which only one process can do: another one may be about to run it.
            if is_surplus and self.storage.set_trial_state_values(
                trial._trial_id, TrialState.RUNNING
            ):
                self.abandon(trial._trial_id)

    def begin(self, trial: optuna.Trial) -> Trial:
        """The cell of a trial that this process has just started, with its parameters;
        NotACellError if it has none.

        The last reading will do if it has the trial: whatever has a lower number was there before.
        """
        if trial.number >= len(self._read):
            self.refresh()
        cell = next(
            (cell for cell, live in self._live().items() if live.number == trial.number), None
        )
        if cell is None:
            raise NotACellError
        self.draw(trial)
        return self._as_trial(cell, self.storage.get_trial(trial._trial_id))

    def next(self) -> Trial | None:
        """Start the next waiting trial in this process, without a worker; None if none is
        waiting.
        """
        while True:
            self.top_up()
            if not self.has_waiting:
                return None
            with warnings.catch_warnings():
                # Optuna warns that nobody records heartbeats.
                warnings.simplefilter("ignore", UserWarning)
                try:
                    trial = self.study.ask()
                except NothingWaitsError:
                    continue
            try:
                return self.begin(trial)
            except NotACellError:
                self.abandon(trial._trial_id)

    def remember(self, trial: Trial, facts: dict[str, Any]) -> None:
        """Let a trial that this process runs end with these facts."""
        if isinstance(self.storage, SharedStorage):
            self.storage.add_at_end(trial.trial_id, {"facts": facts})
        else:
            self.storage.set_trial_user_attr(trial.trial_id, "facts", facts)

    def give_back(
        self,
        trial: Trial,
        spent: dict[str, Any],
        died: str = "",
        failed: dict[str, Any] | None = None,
    ) -> bool:
        """Let a running trial wait for another worker; returns whether its holder still had it.

        `died` says how the holder ended. After MAX_DEATHS of them without progress of the run
        (`stuck`) the trial fails, with the facts `failed`.
        """
        facts, state = {**spent, "died": died} if died else spent, TrialState.WAITING
        if died and spent.get("stuck", spent["deaths"]) >= MAX_DEATHS:
            reason = f"{spent['deaths']} workers died while running it, the last one {died}"
            facts, state = {**(failed or {}), **spent, "reason": reason}, TrialState.FAIL
        # Optuna's storage in memory does not look again at a trial that was started.
        assert isinstance(self.storage, SharedStorage)
        attributes = {"facts": facts, "progress": None, LEASE: None}
        return bool(self.storage.give_back(trial.trial_id, trial.holder, attributes, state))

    def abandon(self, trial_id: int) -> None:
        """End a trial that does not count."""
        with contextlib.suppress(UpdateFinishedTrialError):
            self.storage.set_trial_state_values(trial_id, TrialState.FAIL)
