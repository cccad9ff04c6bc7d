"""What a worker process of a sweep does: take trials, train and score their runs, on training and
validation data only.

A cell is trained at least once. That is harmless: the same recipe is the same run, so a second
worker waits for the first or resumes its checkpoint, and finds a finished run finished.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import optuna
from rich.console import Console

from cudt.config import plugins
from cudt.config.recipe import NamedRecipe
from cudt.evaluation import evaluate
from cudt.method.constraints import FAILING
from cudt.runs.run import Run, run_for
from cudt.sweep.studies import (
    STORAGE_ERRORS,
    ArmStudy,
    SurplusError,
    is_of_storage,
    next_waiting,
    open_storage,
    studies_of,
    sweeps_in,
)
from cudt.training import train as training
from cudt.training.checkpoint import discard
from cudt.training.display import Display
from cudt.utils.device import DeviceName
from cudt.utils.errors import (
    MACHINE_ERRORS,
    StopRequest,
    TerminatedError,
    TrainingInterruptedError,
    TrainingPrunedError,
    TrainingStoppedError,
    UserError,
)
from cudt.utils.text import track

#: What ends a trial, but not its worker.
_CAUGHT = (UserError, TrainingStoppedError, SurplusError)
#: Seconds between two looks at the trials of others.
_PAUSE = 1.0


@dataclass(frozen=True)
class SweepOptions:
    """The options of `cudt sweep`; none of them changes a result."""

    out: Path
    device: DeviceName = "auto"
    data_root: Path | None = None
    workers: int = 1
    retry_failed: bool = False
    storage: str | None = None
    """The URL of a database; by default, a SQLite file in the sweep's folder."""
    join: bool = False
    """Take part in a sweep as it is, without enqueueing anything."""
    trackers: tuple[str, ...] = ()


# ---------------------------------------------------------------- the loop


def main(job: tuple[Sequence[str], SweepOptions]) -> int:
    """Run trials of sweeps, named by their first studies, until nothing is left; returns the exit
    code. An error that nobody expects ends the worker, because it may have broken what the process
    has on its GPU; its command starts another.
    """
    names, options = job
    with StopRequest() as stop:
        while not stop.requested:
            try:
                storage = open_storage(options.storage or "")
                known = sweeps_in(storage)
                studies = [one for name in names for one in studies_of(known[name], storage)]
                work(studies, options, stop)
                break
            except (TrainingInterruptedError, TerminatedError):
                return 128 + signal.SIGTERM
            except Exception as error:
                if not is_of_storage(error):
                    raise
                # Until it is back, or the command that started this worker gives up.
                print(f"waiting for the storage: {error}", file=sys.stderr, flush=True)
                time.sleep(_PAUSE)
    return 128 + signal.SIGTERM if stop.requested else 0


@contextmanager
def _stopping_at_once(stop: StopRequest) -> Iterator[None]:
    """SIGTERM interrupts a run; elsewhere it waits, since Optuna could not store a trial's state:
    one that runs without a heartbeat would never be repeated.
    """
    if stop.requested:
        raise TerminatedError

    def terminate(*_: object) -> NoReturn:
        # Batch systems send several.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def work(studies: Sequence[ArmStudy], options: SweepOptions, stop: StopRequest) -> None:
    """Run trials until no cell of these studies is left, or a stop is requested."""
    left = [*studies]
    while left and not stop.requested:
        if (study := next_waiting(left)) is not None:
            attempt = partial(_attempt, study, options, stop)
            try:
                study.study.optimize(attempt, n_trials=1, catch=_CAUGHT)
            except ValueError as error:
                # While the storage was away, others took this worker for dead.
                if "Cannot tell" not in str(error):
                    raise
        else:
            time.sleep(_PAUSE)
            left = [study for study in left if study.n_left]
            for one in left:
                # Optuna looks for lost workers only in studies that it takes a trial from.
                optuna.storages.fail_stale_trials(one.study)
                one.enqueue()


def _attempt(arm: ArmStudy, options: SweepOptions, stop: StopRequest, trial: optuna.Trial) -> float:
    """Run the cell of a trial to its end; returns the score that Optuna optimizes."""
    run = None
    try:
        recipe = arm.sweep.recipe(arm.setting, arm.name, arm.begin(trial))
        run = run_for(recipe, options.out)
        referee = None if arm.arm.pruner is None else Referee(arm, trial)
        with _stopping_at_once(stop):
            score, found = run_cell(recipe, arm, options, referee)
    except (SurplusError, TrainingInterruptedError, KeyboardInterrupt, *MACHINE_ERRORS):
        trial.set_user_attr("returned", True)
        raise
    except Exception as error:
        if not is_of_storage(error):
            is_known = isinstance(error, UserError | TrainingStoppedError | TrainingPrunedError)
            reason = str(error) if is_known else f"{type(error).__name__}: {error}"
            trial.set_user_attr("facts", _facts(run, options.out))
            trial.set_user_attr("reason", reason)
        if isinstance(error, TrainingPrunedError):
            raise optuna.TrialPruned from None
        raise
    trial.set_constraint("violated layers", found["violated"])
    trial.set_user_attr("facts", {**_facts(run, options.out), **found})
    # NaN is the worst score, so that a sampler stays away from there.
    worst = -math.inf if arm.sweep.search.score.direction == "maximize" else math.inf
    return worst if math.isnan(score) else score


def _facts(run: Run | None, out: Path) -> dict[str, Any]:
    """A run's folder below `out`, and its updates and seconds so far, wherever it was trained."""
    if run is None:
        return {}
    history = run.read_table("history")
    updates = None if history.empty else int(history["step"].max())
    seconds = {} if (spent := run.info().seconds) is None else {"seconds": spent}
    return {"run": run.path.relative_to(out).as_posix(), "updates": updates, **seconds}


# ---------------------------------------------------------------- one run


def run_cell(
    recipe: NamedRecipe, arm: ArmStudy, options: SweepOptions, referee: Referee | None
) -> tuple[float, dict[str, Any]]:
    """Train and score a run; returns the score, and what the tables say of the run. An interrupted
    run is resumed; a finished run is only scored.
    """
    score, gammas = arm.sweep.search.score, arm.sweep.gammas
    run = training.train(
        *(recipe, options.out, options.device, options.data_root),
        Display(Console(markup=False, emoji=False)),
        keep_weights=True,
        wait=True,
        after_epoch=referee,
        track=options.trackers,
    )
    if referee is not None:
        # Others are compared with it, also if it was finished before.
        referee.is_behind(epoch_values(run, score.measure))
    with run.locked(wait=True):
        if gammas is not None:
            evaluate.evaluate_validation(run, gammas, options.device, options.data_root, track)
        discard(run)
    info, last = run.finished_info(), _last_layer(run)
    is_constrained = plugins.has("objective", info.objective, "is_constrained")
    return score_of(run, score.measure, gammas), {
        "best_epoch": info.best.epoch,
        "validation_loss": float(last["loss"]),
        "validation_metric": float(last["metric"]),
        "feasible": info.feasible,
        "violated": sum(is_constrained and one.verdict in FAILING for one in info.verdicts),
        "monotone": info.monotone,
    }


def _last_layer(run: Run) -> Any:
    """The last layer's loss and metric on validation data at γ_train."""
    return run.rows("layers", "validation").sort_values("layer").iloc[-1]


def score_of(run: Run, measure: str, gammas: Sequence[float] | None) -> float:
    """A run's score on validation data, with its own weights (`training.select`): f_L at γ_train,
    the metric there, or the mean metric over the levels `gammas`, NaN if one of them is.
    """
    if measure == "loss":
        return run.finished_info().best.validation_loss
    if measure == "metric":
        return float(_last_layer(run)["metric"])
    rows = run.rows("ood", "validation")
    curve = dict(zip(rows["gamma"].astype(float), rows["value"].astype(float), strict=True))
    values = [curve.get(gamma, math.nan) for gamma in gammas or []]
    return sum(values) / len(values)


class Referee:
    """Ends runs early that look worse than others did after as many epochs, as an Optuna pruner
    decides. It reads history.csv, so that resumed runs are compared like any others.
    """

    def __init__(self, arm: ArmStudy, trial: optuna.Trial) -> None:
        self._measure, self._trial = arm.sweep.search.score.measure, trial
        self._reported: set[int] = set()

    def __call__(self, run: Run) -> None:
        """Raise TrainingPrunedError if the run is to end after this epoch."""
        # While the storage is away, training goes on.
        with suppress(*STORAGE_ERRORS):
            if self.is_behind(epoch_values(run, self._measure)):
                of = f"epoch {max(self._reported)} of {run.recipe.settings.training.epochs}"
                raise TrainingPrunedError(f"after {of}; `cudt train` resumes it")

    def is_behind(self, values: dict[int, float]) -> bool:
        """Report the epochs that are new; whether the run is to end after the last of them."""
        is_behind = False
        for epoch in sorted(values.keys() - self._reported):
            self._trial.report(values[epoch], epoch)
            self._reported.add(epoch)
            # Asked after every epoch, even if the answer does not count: halving takes notes.
            is_behind = self._trial.should_prune()
        return is_behind


def epoch_values(run: Run, measure: str) -> dict[int, float]:
    """By epoch, the last layer's metric on validation data at γ_train, or its loss if that is the
    sweep's score.
    """
    history, metric = run.read_table("history"), run.info().metric
    name = "loss" if measure == "loss" or metric is None else metric.name
    rows = history[(history["split"] == "validation") & (history["name"] == name)]
    last = rows[rows["layer"] == rows["layer"].max()]
    return dict(zip(last["epoch"].astype(int), last["value"].astype(float), strict=True))
