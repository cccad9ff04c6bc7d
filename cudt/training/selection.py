"""When validation data are measured, which weights are the best, and when training stops early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cudt.config.schema import Training
from cudt.runs.info import StoppedEarly
from cudt.training.state import TrainingState


@dataclass(frozen=True)
class Selection:
    """The rules of `training.validate_every`, `training.early_stopping` and the best weights.

    All of them follow from the progress of a training, which is the same in all processes and after
    a resume.
    """

    settings: Training
    updates_per_epoch: int

    def is_due(self, state: TrainingState) -> bool:
        """Whether validation data are to be measured now, within an epoch; each epoch ends with it
        anyway.
        """
        every, done = self.settings.validate_every, state.step_in_epoch
        is_inside = 0 < done < self.updates_per_epoch and state.validated_step != state.step
        return every is not None and is_inside and done % every == 0

    def note(self, state: TrainingState, rank: list[float], *, warming_up: bool) -> None:
        """Note a validation in `state`."""
        is_best = is_better(rank, state.best)
        state.validated_step = state.step
        state.since_best = 0 if is_best or warming_up else state.since_best + 1
        if is_best:
            state.best, state.best_epoch, state.best_step = rank, state.epoch + 1, state.step

    def is_over(self, state: TrainingState) -> bool:
        """Whether training ends, because the last validations found nothing better."""
        patience = self.settings.early_stopping
        return patience is not None and state.since_best >= patience

    def end_epoch(self, state: TrainingState) -> None:
        """Let `state` be that of the next epoch; an epoch that training stops in ends there."""
        is_last_update = state.step >= self.settings.epochs * self.updates_per_epoch
        state.stopped_early = self.is_over(state) and not is_last_update
        state.epoch += 1
        state.step_in_epoch = 0

    def goes_on(self, state: TrainingState) -> bool:
        """Whether another epoch follows, or an interrupted one."""
        return state.epoch < self.settings.epochs and not state.stopped_early


def rank_of(values: Sequence[float], *, warming_up: bool) -> list[float]:
    """The rank of a validation from the values of its objective; lower is better, compared from
    left to right.
    """
    # Warm-up solves another problem: its validations count only while there are no others. NaN is
    # neither below nor above a number, so a validation with it would stay the best one.
    return [math.inf if math.isnan(part) else part for part in (float(warming_up), *values)]


def is_better(rank: list[float], best: list[float] | None) -> bool:
    """Whether a validation is better than the best one before, if any."""
    return best is None or rank < best


def early_stop(state: TrainingState) -> StoppedEarly | None:
    """What run.json says of a training that stopped early; None for one that did not."""
    if not state.stopped_early:
        return None
    return StoppedEarly(epoch=state.epoch, step=state.step, validations=state.since_best)
