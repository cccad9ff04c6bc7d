"""Pruning: end a run early that looks worse than others did after as many epochs, as an Optuna
pruner decides.

Runs are compared by what they log after each epoch: f_L on validation data at γ_train if the
sweep's score is a loss, otherwise the metric there. The values are read from history.csv, so that a
run that was interrupted, or trained before the sweep, is compared like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, SuccessiveHalvingPruner
from optuna.trial import TrialState

from cudt.sweep.queue import Trial, TrialQueue
from cudt.sweep.search import Pruner
from cudt.utils.errors import TrainingPrunedError

if TYPE_CHECKING:
    from cudt.runs.run import Run


def build(pruner: Pruner, epochs: int) -> BasePruner:
    """Optuna's pruner for runs of `epochs` epochs; its steps are epochs, from 1."""
    first = pruner.warmup_epochs + 1
    match pruner.name:
        case "median":
            # The number of finished runs is checked for all pruners alike, by Referee.
            return MedianPruner(n_startup_trials=0, n_warmup_steps=first)
        case "halving":
            return SuccessiveHalvingPruner(min_resource=first)
        case "hyperband":
            return HyperbandPruner(min_resource=first, max_resource=epochs)


class Referee:
    """Reports the epochs of a trial's run to its study, whose pruner says whether the run ends
    early.
    """

    def __init__(self, queue: TrialQueue, trial: Trial, pruner: Pruner, measure: str) -> None:
        self._queue, self._trial, self._pruner, self._measure = queue, trial, pruner, measure

    def after_epoch(self, run: Run) -> None:
        """Raise TrainingPrunedError if the run is to end."""
        values = epoch_values(run, self._measure)
        if self.is_behind(values):
            epoch = max(values)
            raise TrainingPrunedError(
                f"pruned by a sweep after epoch {epoch} of {run.recipe.settings.training.epochs} "
                f"({self._pruner.name}, validation "
                f"{'loss' if self._measure == 'loss' else 'metric'} "
                f"{values[epoch]:.5g}); `cudt train` resumes it"
            )

    def after_training(self, run: Run) -> None:
        """Report a run that is finished, perhaps since before the sweep: others are compared with
        it.
        """
        self.is_behind(epoch_values(run, self._measure))

    def is_behind(self, values: dict[int, float]) -> bool:
        """Report the epochs that are new, and return whether the run is to end after the last of
        them.
        """
        study, storage, trial = self._queue.study, self._queue.storage, self._trial.trial_id
        # An earlier worker that died may have reported some of them.
        reported = storage.get_trial(trial).intermediate_values
        wanted = False
        for epoch in sorted(values.keys() - reported.keys()):
            storage.set_trial_intermediate_value(trial, epoch, values[epoch])
            # Asked after every epoch, even if the answer does not count: halving takes notes of
            # what it is asked.
            wanted = study.pruner.prune(study, storage.get_trial(trial))
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return wanted and len(finished) >= self._pruner.min_finished


def epoch_values(run: Run, measure: str) -> dict[int, float]:
    """What runs are compared by, after each epoch that is validated; empty for a run that was not
    begun.
    """
    if not (run.path / "history.csv").is_file():
        return {}
    history, metric = run.read_table("history"), run.info().metric
    name = "loss" if measure == "loss" or metric is None else metric.name
    rows = history[(history["split"] == "validation") & (history["name"] == name)]
    last = rows[rows["layer"] == rows["layer"].max()]
    return {
        int(epoch): float(value) for epoch, value in zip(last["epoch"], last["value"], strict=True)
    }
