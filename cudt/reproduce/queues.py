"""The queues of an experiment: training, evaluations and completions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from optuna.storages import BaseStorage

from cudt.reproduce.evaluation import (
    CompletionQueue,
    CompletionSource,
    EvaluationQueue,
    EvaluationSource,
    requests,
)
from cudt.reproduce.scale import Experiment
from cudt.reproduce.stored import ReproduceOptions
from cudt.sweep import stored
from cudt.sweep.queue import TrialQueue
from cudt.sweep.run_sweep import SweepOptions
from cudt.sweep.source import ArmSource, Source, in_turn
from cudt.sweep.study import ArmStudy


def own_options(experiment: Experiment, options: ReproduceOptions) -> SweepOptions:
    """The options of an experiment's sweep, with the experiment's own data root."""
    data_root = experiment.data_root(options.data_root, options.out)
    return SweepOptions(
        options.out, options.device, data_root, options.workers, options.retry_failed, options.url
    )


class ExperimentQueues:
    """Opened when they are needed, because a scale has hundreds of studies."""

    def __init__(
        self, experiment: Experiment, storage: BaseStorage, options: ReproduceOptions
    ) -> None:
        self.experiment, self.options, self._storage = (
            experiment,
            own_options(experiment, options),
            storage,
        )

    @cached_property
    def arms(self) -> list[ArmSource]:
        """The sources of training runs."""
        studies, options = stored.open_studies(self.experiment.sweep, self._storage), self.options
        for study in studies:
            study.title = self.experiment.name
        return stored.sources_of(
            studies, options.out, options.device, options.data_root, options.cell_function
        )

    @cached_property
    def studies(self) -> list[ArmStudy]:
        """The study of each arm in each setting."""
        return [arm.queue for arm in self.arms]

    @cached_property
    def evaluations(self) -> EvaluationSource:
        """The evaluations of runs."""
        queue = EvaluationQueue(self._storage, self.experiment, self.studies)
        return EvaluationSource(queue, self.experiment, self.options)

    @cached_property
    def completions(self) -> CompletionSource | None:
        """The completions of runs; None without instructions."""
        if not requests(self.experiment, self.options.data_root):
            return None
        queue = CompletionQueue(self._storage, self.experiment, self.studies)
        return CompletionSource(queue, self.experiment, self.options)

    @property
    def others(self) -> list[EvaluationSource | CompletionSource]:
        """What comes after training."""
        return [self.evaluations, *([self.completions] if self.completions is not None else [])]

    @property
    def sources(self) -> list[Source]:
        """All sources."""
        return [*self.arms, *self.others]

    @property
    def queues(self) -> list[TrialQueue]:
        return [source.queue for source in self.sources]

    def in_turn(self) -> Iterator[Source]:
        """The sources in the order in which workers take trials from them."""
        yield from in_turn(self.arms)
        yield from self.others

    @property
    def is_done(self) -> bool:
        """Whether nothing is left; reads what is not known to be done."""
        return all(queue.is_done or not queue.left for queue in self.queues)

    def begin(self, *, retry_failed: bool) -> None:
        """Enqueue what is missing: trials of training, and evaluations that have failed or whose
        tables are gone.
        """
        stored.begin(
            self.experiment.sweep, self.studies, fail_fast=False, retry_failed=retry_failed
        )
        for source in self.others:
            ended = [trial for trial in source.queue.trials() if trial.has_ended]
            source.queue.repeat(
                trial
                for trial in ended
                if trial.state == "failed" or not source.is_done(trial.cell)
            )
