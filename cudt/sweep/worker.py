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
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState
from rich.console import Console

from cudt.config import plugins
from cudt.config.recipe import NamedRecipe
from cudt.evaluation import evaluate
from cudt.method.constraints import FAILING
from cudt.runs.run import Run, run_for
from cudt.sweep.storage import HEARTBEAT, STORAGE_ERRORS, is_of_storage, open_storage, sweeps_in
from cudt.sweep.studies import ArmStudy, SurplusError, next_waiting, studies_of
from cudt.training import train as training
from cudt.training.checkpoint import discard
from cudt.training.display import Display
from cudt.utils.device import DeviceName
from cudt.utils.errors import (
    MACHINE_ERRORS,
    TerminatedError,
    TrainingInterruptedError,
    TrainingPrunedError,
    TrainingStoppedError,
    UserError,
    signal_of,
)
from cudt.utils.text import track

#: The exit code of a worker that wants to be started again: an unexpected error may have broken
#: what the process has on its GPU.
RESTART = 75
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
    heartbeat: int = HEARTBEAT
    cell: Cell | None = None
    """Instead of `run_cell`."""


#: Trains and scores the run of a recipe; returns the score, and what the tables say of the run.
Cell = Callable[
    [NamedRecipe, ArmStudy, SweepOptions, "Referee | None"], tuple[float, dict[str, Any]]
]


class _FailedError(Exception):
    """A run failed, as its trial says."""


#: What ends a trial, but not its worker; of the last, others have ended the trial already.
_CAUGHT = (SurplusError, _FailedError, UpdateFinishedTrialError)


class _CrashedError(Exception):
    """A run failed in a way that nobody expects."""


# ---------------------------------------------------------------- the loop


def main(job: tuple[str, SweepOptions]) -> int:
    """Run trials of a sweep, named by its first study, until nothing is left; returns the exit
    code.
    """
    study, options = job
    signal.signal(signal.SIGTERM, _terminate)
    while True:
        try:
            storage = open_storage(options.storage or "", options.heartbeat)
            work(studies_of(sweeps_in(storage)[study], storage), options)
            return 0
        except _CrashedError as error:
            traceback.print_exception(error.__cause__)
            return RESTART
        except TrainingInterruptedError as error:
            return error.exit_code
        except KeyboardInterrupt as error:
            return 128 + signal_of(error)
        except Exception as error:
            if not is_of_storage(error):
                raise
            # Until it is back, or the command that started this worker gives up.
            print(f"waiting for the storage: {error}", file=sys.stderr, flush=True)
            time.sleep(_PAUSE)


def _terminate(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise TerminatedError


def work(studies: Sequence[ArmStudy], options: SweepOptions) -> None:
    """Run trials until no cell of these studies is left."""
    while any(study.n_left for study in studies):
        if (study := next_waiting(studies)) is not None:
            attempt = partial(_attempt, study, options)
            try:
                study.study.optimize(attempt, n_trials=1, catch=_CAUGHT)
            except ValueError as error:
                # While the storage was away, others took this worker for dead.
                if "Cannot tell" not in str(error):
                    raise
        else:
            time.sleep(_PAUSE)
            for one in studies:
                # Optuna looks for lost workers only in studies that it takes a trial from.
                optuna.storages.fail_stale_trials(one.study)
                one.enqueue()


def _attempt(arm: ArmStudy, options: SweepOptions, trial: optuna.Trial) -> float:
    """Run the cell of a trial to its end; returns the score that Optuna optimizes."""
    settings, began, run = arm.begin(trial), time.monotonic(), None
    before = trial.user_attrs.get("seconds", 0.0)

    def facts(**more: Any) -> dict[str, Any]:
        seconds = round(before + time.monotonic() - began, 1)
        return {**({} if run is None else _facts(run, options.out)), "seconds": seconds, **more}

    try:
        recipe = arm.sweep.recipe(arm.setting, arm.name, settings)
        run = run_for(recipe, options.out)
        referee = None if arm.arm.pruner is None else Referee(arm, trial)
        score, found = (options.cell or run_cell)(recipe, arm, options, referee)
    except (UpdateFinishedTrialError, *STORAGE_ERRORS):
        raise
    except (TrainingInterruptedError, KeyboardInterrupt, *MACHINE_ERRORS):
        arm.repeat(trial, seconds=facts()["seconds"])
        trial.set_user_attr("interrupted", True)
        raise
    except TrainingPrunedError as error:
        trial.set_user_attr("facts", facts(reason=str(error)))
        raise optuna.TrialPruned from None
    except (UserError, TrainingStoppedError) as error:
        trial.set_user_attr("facts", facts(reason=str(error)))
        raise _FailedError from error
    except Exception as error:
        trial.set_user_attr("facts", facts(reason=f"{type(error).__name__}: {error}"))
        raise _CrashedError from error
    trial.set_constraint("violated layers", found["violated"])
    trial.set_user_attr("facts", facts(**found))
    # NaN is the worst score, so that a sampler stays away from there.
    worst = -math.inf if arm.sweep.search.score.direction == "maximize" else math.inf
    return worst if math.isnan(score) else score


def _facts(run: Run, out: Path) -> dict[str, Any]:
    """A run's folder below `out`, and its number of updates so far."""
    history = run.read_table("history")
    updates = None if history.empty else int(history["step"].max())
    return {"run": run.path.relative_to(out).as_posix(), "updates": updates}


# ---------------------------------------------------------------- one run


def run_cell(
    recipe: NamedRecipe, arm: ArmStudy, options: SweepOptions, referee: Referee | None
) -> tuple[float, dict[str, Any]]:
    """Train and score a run. An interrupted run is resumed; a finished run is only scored."""
    score, gammas = arm.sweep.search.score, arm.sweep.gammas
    was_finished = run_for(recipe, options.out).info().status == "finished"
    run = _trained(recipe, options, arm.sweep.title, referee)
    if referee is not None:
        # Others are compared with it, also if it was finished before the sweep.
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
        # How long it took is not known of a run that was trained before.
        **({"seconds": None} if was_finished else {}),
    }


def _trained(
    recipe: NamedRecipe, options: SweepOptions, group: str, referee: Referee | None
) -> Run:
    return training.train(
        recipe,
        options.out,
        options.device,
        options.data_root,
        Display(Console(markup=False, emoji=False)),
        keep_weights=True,
        wait=True,
        after_epoch=referee,
        track=training.TrackingRequest(options.trackers, group),
    )


def _validation_curve(run: Run) -> dict[float, float]:
    """The metric on validation data at each level γ."""
    rows = run.rows("ood", "validation")
    return dict(zip(rows["gamma"].astype(float), rows["value"].astype(float), strict=True))


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
    curve = _validation_curve(run)
    values = [curve.get(gamma, math.nan) for gamma in gammas or []]
    return sum(values) / len(values)


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
                of = f"epoch {max(values)} of {run.recipe.settings.training.epochs}"
                raise TrainingPrunedError(f"pruned after {of}; `cudt train` resumes it")

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
