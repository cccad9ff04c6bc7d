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
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from cudt.config.recipe import NamedRecipe
from cudt.evaluation import evaluate
from cudt.method.constraints import FAILING
from cudt.method.objectives import objective_class
from cudt.runs.find import run_for
from cudt.runs.run import Run
from cudt.sweep.search import Settings
from cudt.sweep.storage import HEARTBEAT, STORAGE_ERRORS, open_storage, sweeps_in
from cudt.sweep.studies import ArmStudy, SurplusError, next_waiting, studies_of
from cudt.training import launch
from cudt.training.checkpoint import discard
from cudt.training.display import PlainDisplay
from cudt.training.tracking import TrackingRequest
from cudt.utils.console import SafeConsole
from cudt.utils.device import DeviceName
from cudt.utils.errors import (
    MACHINE_ERRORS,
    MachineFaultError,
    TerminatedError,
    TrainingInterruptedError,
    TrainingPrunedError,
    TrainingStoppedError,
    UserError,
    signal_of,
)
from cudt.utils.progress import track

#: The exit code of a worker that wants to be started again: an unexpected error may have broken
#: what the process has on its GPU.
RESTART = 75
#: Seconds between two looks at the trials of others, and for which an absent storage is waited for.
_PAUSE, _PATIENCE = 1.0, 300.0
#: Called after each epoch; may end a training early.
AfterEpoch = Callable[[Run], None]


@dataclass(frozen=True)
class Outcome:
    """The score of a finished run, and what the tables say about it."""

    score: float
    facts: dict[str, Any]
    violated: int = 0
    """How many layers break their constraint; 0 for objectives without constraints."""


@dataclass(frozen=True)
class Job:
    """What a worker needs to know; it reads the sweep itself from the storage."""

    storage: str
    study: str
    """The first study of the sweep."""
    out: Path
    device: DeviceName = "auto"
    data_root: Path | None = None
    trackers: tuple[str, ...] = ()
    cell: Callable[[NamedRecipe, ArmStudy, Job, AfterEpoch | None], Outcome] | None = None
    """Trains and scores a run, instead of `run_cell`."""
    heartbeat: int = HEARTBEAT


class _CellFailedError(Exception):
    """A run failed; the reason is in its trial."""


# ---------------------------------------------------------------- the loop


def main(job: Job) -> int:
    """Run trials of a sweep until nothing is left; returns the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    away_since = math.inf
    while True:
        began = time.monotonic()
        try:
            sweep = sweeps_in(job.storage)[job.study]
            return work(studies_of(sweep, open_storage(job.storage, job.heartbeat)), job)
        except (UserError, *STORAGE_ERRORS) as error:
            now = time.monotonic()
            away_since = now if now - began > _PATIENCE else min(away_since, now)
            if now - away_since > _PATIENCE:
                reason = str(error.__cause__ or error).strip().split("\n")[0]
                raise MachineFaultError(f"the storage of the trials fails: {reason}") from error
            print(f"waiting for the storage: {error}", file=sys.stderr, flush=True)
            time.sleep(_PAUSE)
        except TrainingInterruptedError as error:
            return error.exit_code
        except KeyboardInterrupt as error:
            return 128 + signal_of(error)


def _terminate(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise TerminatedError


def work(studies: Sequence[ArmStudy], job: Job) -> int:
    """Run trials until no cell of these studies is left; returns the exit code."""
    while any(study.n_left for study in studies):
        if (study := next_waiting(studies)) is None:
            time.sleep(_PAUSE)
            for one in studies:
                # Optuna looks for lost workers only in studies that it takes a trial from.
                optuna.storages.fail_stale_trials(one.study)
                one.enqueue()
        elif not _run_one(study, job):
            return RESTART
    return 0


def _run_one(arm: ArmStudy, job: Job) -> bool:
    """Run one trial; whether the process is still good for another one."""
    attempt = _Attempt(arm, job)
    try:
        arm.study.optimize(attempt, n_trials=1, catch=(SurplusError, _CellFailedError))
    except (ValueError, UpdateFinishedTrialError) as error:
        # While the storage was away, others took this worker for dead and repeat its trial.
        if isinstance(error, ValueError) and "Cannot tell" not in str(error):
            raise
    return attempt.is_sound


class _Attempt:
    """One run of one trial: what Optuna optimizes."""

    def __init__(self, arm: ArmStudy, job: Job) -> None:
        self.arm, self.job, self.is_sound = arm, job, True

    def __call__(self, trial: optuna.Trial) -> float:
        settings, began = self.arm.begin(trial), time.monotonic()
        before = trial.user_attrs.get("seconds", 0.0)

        def seconds() -> float:
            return round(before + time.monotonic() - began, 1)

        try:
            recipe = self.arm.sweep.recipe(self.arm.setting, self.arm.name, settings)
            referee = None if self.arm.arm.pruner is None else Referee(self.arm, trial)
            outcome = (self.job.cell or run_cell)(recipe, self.arm, self.job, referee)
        except (UpdateFinishedTrialError, *STORAGE_ERRORS):
            raise
        except (TrainingInterruptedError, KeyboardInterrupt, *MACHINE_ERRORS):
            self.arm.repeat(trial, seconds=seconds())
            trial.set_user_attr("interrupted", True)
            raise
        except Exception as error:
            reason = self._reason(error)
            facts = {"seconds": seconds(), "reason": reason, **self._known(settings)}
            trial.set_user_attr("facts", facts)
            if isinstance(error, TrainingPrunedError):
                raise optuna.TrialPruned from None
            raise _CellFailedError(reason) from error
        trial.set_constraint("violated layers", outcome.violated)
        facts = {"violated": outcome.violated, "seconds": seconds(), **outcome.facts}
        trial.set_user_attr("facts", facts)
        # NaN is the worst score, so that a sampler stays away from there.
        worst = -math.inf if self.arm.sweep.search.score.direction == "maximize" else math.inf
        return worst if math.isnan(outcome.score) else outcome.score

    def _reason(self, error: Exception) -> str:
        if isinstance(error, UserError | TrainingStoppedError | TrainingPrunedError):
            return str(error)
        self.is_sound = False
        traceback.print_exception(error)
        return f"{type(error).__name__}: {error}"

    def _known(self, settings: Settings) -> dict[str, Any]:
        """What the tables say of a run without a score."""
        with suppress(UserError, OSError):
            recipe = self.arm.sweep.recipe(self.arm.setting, self.arm.name, settings)
            return _named(run_for(recipe, self.job.out), self.job.out)
        return {}


# ---------------------------------------------------------------- one run


def run_cell(
    recipe: NamedRecipe, arm: ArmStudy, job: Job, after_epoch: AfterEpoch | None
) -> Outcome:
    """Train and score a run. An interrupted run is resumed; a finished run is only scored."""
    gammas, was_finished = arm.sweep.gammas, run_for(recipe, job.out).info().status == "finished"
    run = _trained(recipe, job, arm.sweep.title, after_epoch)
    if isinstance(after_epoch, Referee):
        # Others are compared with it, also if it was finished before the sweep.
        after_epoch.is_behind(epoch_values(run, arm.sweep.search.score.measure))
    with run.locked(wait=True):
        if gammas is not None:
            evaluate.evaluate_validation(run, gammas, job.device, job.data_root, track)
        discard(run)
    info, layers = run.finished_info(), run.read_table("layers")
    last = layers[layers["split"] == "validation"].sort_values("layer").iloc[-1]
    facts = {
        **_named(run, job.out),
        "best_epoch": info.best.epoch,
        "validation_loss": float(last["loss"]),
        "validation_metric": float(last["metric"]),
        "feasible": info.feasible,
        "monotone": info.monotone,
        # How long it took is not known of a run that was trained before.
        **({"seconds": None} if was_finished else {}),
    }
    is_constrained = objective_class(info.objective).is_constrained
    violated = sum(one.verdict in FAILING for one in info.verdicts) if is_constrained else 0
    return Outcome(score_of(run, arm.sweep.search.score.measure, gammas), facts, violated)


def _trained(recipe: NamedRecipe, job: Job, group: str, after_epoch: AfterEpoch | None) -> Run:
    return launch.train(
        recipe,
        job.out,
        job.device,
        job.data_root,
        PlainDisplay(SafeConsole()),
        export_model=False,
        keep_weights=True,
        wait=True,
        after_epoch=after_epoch,
        track=TrackingRequest(job.trackers, group),
    )


def _validation_curve(run: Run) -> dict[float, float]:
    """The metric on validation data at each level γ."""
    table = run.read_table("validation")
    rows = table[table["metric"] == run.finished_info().metric.name]
    return dict(zip(rows["gamma"].astype(float), rows["value"].astype(float), strict=True))


def score_of(run: Run, measure: str, gammas: Sequence[float] | None) -> float:
    """A run's score on validation data, with its own weights (`training.select`): f_L at γ_train,
    the metric there, or the mean metric over the levels `gammas`, NaN if one of them is.
    """
    if measure == "loss":
        return run.finished_info().best.validation_loss
    if measure == "metric":
        layers = run.read_table("layers")
        rows = layers[layers["split"] == "validation"].sort_values("layer")
        return float(rows["metric"].iloc[-1])
    curve = _validation_curve(run)
    values = [curve.get(gamma, math.nan) for gamma in gammas or []]
    return sum(values) / len(values)


def _named(run: Run, out: Path) -> dict[str, Any]:
    """A run's folder below `out`, and its number of updates so far."""
    history = run.read_table("history")
    updates = None if history.empty else int(history["step"].max())
    return {"run": run.path.relative_to(out).as_posix(), "updates": updates}


class Referee:
    """Ends runs early that look worse than others did after as many epochs, as an Optuna pruner
    decides.

    Runs are compared by what they log after each epoch: f_L on validation data at γ_train if the
    sweep's score is a loss, otherwise the metric there. The values are read from history.csv, so
    that a run that was interrupted, or trained before the sweep, is compared like any other.
    """

    def __init__(self, arm: ArmStudy, trial: optuna.Trial) -> None:
        self._arm, self._trial = arm, trial
        self._reported: set[int] = set()

    def __call__(self, run: Run) -> None:
        """Raise TrainingPrunedError if the run is to end after this epoch."""
        values = epoch_values(run, self._arm.sweep.search.score.measure)
        # While the storage is away, training goes on.
        with suppress(*STORAGE_ERRORS):
            if self.is_behind(values):
                epochs = run.recipe.settings.training.epochs
                raise TrainingPrunedError(
                    f"pruned by a sweep after epoch {max(values)} of {epochs}; "
                    "`cudt train` resumes it"
                )

    def is_behind(self, values: dict[int, float]) -> bool:
        """Report the epochs that are new; whether the run is to end after the last of them."""
        is_behind = False
        for epoch in sorted(values.keys() - self._reported):
            self._trial.report(values[epoch], epoch)
            self._reported.add(epoch)
            # Asked after every epoch, even if the answer does not count: halving takes notes.
            is_behind = self._trial.should_prune()
        finished = self._arm.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        pruner = self._arm.arm.pruner
        return is_behind and pruner is not None and len(finished) >= pruner.min_finished


def epoch_values(run: Run, measure: str) -> dict[int, float]:
    """What runs are compared by, after each epoch that is validated."""
    history, metric = run.read_table("history"), run.info().metric
    name = "loss" if measure == "loss" or metric is None else metric.name
    rows = history[(history["split"] == "validation") & (history["name"] == name)]
    last = rows[rows["layer"] == rows["layer"].max()]
    return dict(zip(last["epoch"].astype(int), last["value"].astype(float), strict=True))
