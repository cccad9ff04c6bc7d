"""Which workers are alive; give back the trials of those that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import TrialState

from cudt.sweep.holder import Holder, is_dead, is_mine
from cudt.sweep.queue import Trial
from cudt.sweep.shared import SharedStorage
from cudt.sweep.source import Source


def give_back_lost(sources: Iterable[Source]) -> None:
    """Give back running trials whose worker no longer exists on this machine, or gave no sign of
    life for too long.
    """
    for source in sources:
        if not isinstance(storage := source.queue.storage, SharedStorage):
            continue
        running = [trial for trial in source.queue.trials() if trial.state == "running"]
        stale = (
            {one.trial_id: one for one in storage.stale(source.queue.study._study_id)}
            if running
            else {}
        )
        for trial in running:
            if trial.holder is None:
                continue
            if trial.trial_id in stale and stale[trial.trial_id].holder == trial.holder:
                give_back(source, trial, _silence(trial.holder))
            elif is_dead(trial.holder):
                give_back(
                    source, trial, f"with its parent process (process {trial.holder['process']})"
                )


def alive(storage: BaseStorage, is_asked: Callable[[str], bool]) -> list[Holder]:
    """The workers that run a trial of some studies now, on any machine, each once; studies are
    chosen by name.
    """
    found: dict[tuple[str, int], Holder] = {}
    for study in storage.get_all_studies():
        if not is_asked(study.study_name) or not isinstance(storage, SharedStorage):
            continue
        running = storage.get_all_trials(
            study._study_id, deepcopy=False, states=(TrialState.RUNNING,)
        )
        stale = {one.trial_id for one in storage.stale(study._study_id)} if running else set()
        for holder in (
            trial.user_attrs.get("holder") for trial in running if trial._trial_id not in stale
        ):
            if holder is not None and not is_dead(holder):
                found[holder["machine"], holder["process"]] = holder
    return list(found.values())


def give_back_of_process(
    sources: Iterable[Source], process: int, how: str, *, is_fault: bool = False
) -> bool:
    """Give back the trial that a worker of this machine held when it ended; returns whether it held
    any.

    `how` is empty if the worker was asked to stop, or a fault of the machine ended it, which is no
    death.
    """
    held = False
    for source in sources:
        for trial in source.queue.trials():
            if (
                trial.state == "running"
                and trial.holder is not None
                and is_mine(trial.holder, process)
            ):
                held = give_back(source, trial, how, is_fault=is_fault) or held
    return held


def give_back(source: Source, trial: Trial, died: str, *, is_fault: bool = False) -> bool:
    """Give back a trial of a worker that is gone, with what it has spent: nothing if the machine
    failed.
    """
    spent = spent_on(
        trial, 0.0 if is_fault else trial.progress.get("seconds", 0.0), deaths=1 if died else 0
    )
    if died:
        spent |= _without_progress(trial)
    failed = source.facts(trial) if died else {}
    return source.queue.give_back(trial, spent, died, failed)


def spent_on(trial: Trial, seconds: float, deaths: int = 0) -> dict[str, Any]:
    """Worker time and deaths of a trial, earlier attempts included."""
    before = trial.facts
    return {
        "seconds": round(before.get("seconds", 0.0) + seconds, 1),
        "deaths": before.get("deaths", 0) + deaths,
    }


def _without_progress(trial: Trial) -> dict[str, Any]:
    """The step of the trial's run, and how many workers have died since it came that far."""
    step, before = trial.progress.get("step", 0), trial.facts
    is_further = step > before.get("step", 0)
    return {
        "step": max(step, before.get("step", 0)),
        "stuck": 1 if is_further else before.get("stuck", 0) + 1,
    }


def _silence(holder: Holder) -> str:
    return f"without a sign of life (process {holder['process']} on {holder['host']})"
