"""How the experiments of a reproduction ended, on all machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cudt.reproduce import needs
from cudt.reproduce.evaluation import RunQueue
from cudt.reproduce.experiment_worker import unusable
from cudt.reproduce.queues import ExperimentQueues
from cudt.reproduce.scale import Experiment


@dataclass
class ExperimentOutcome:
    """How an experiment ended."""

    experiment: Experiment
    runs: int = 0
    """Trained runs, earlier commands included."""
    evaluated: int = 0
    skipped: list[str] = field(default_factory=list)
    """What was skipped, and why."""
    failed: list[str] = field(default_factory=list)
    """What failed, and why."""

    @property
    def is_done(self) -> bool:
        return not self.skipped and not self.failed

    def problems(self) -> list[str]:
        """What was skipped or failed, and why."""
        skipped = [f"skipped: {problem}" for problem in self.skipped]
        return skipped + [f"failed: {problem}" for problem in self.failed]

    def summary(self) -> str:
        state = "partly failed" if self.failed else "done"
        if self.skipped and not self.failed:
            state = "partly skipped" if self.runs else "skipped"
        return f"{state:14} {self.experiment.name}: {self.runs} runs, {self.evaluated} evaluated"


def of(queues: Sequence[ExperimentQueues], missing: Sequence[list[str]]) -> list[ExperimentOutcome]:
    """The outcome of each experiment; `missing` has what each lacks on this machine."""
    return [_of(one, items) for one, items in zip(queues, missing, strict=True)]


def _of(one: ExperimentQueues, missing: list[str]) -> ExperimentOutcome:
    made = ExperimentOutcome(one.experiment)
    trials = [trial for study in one.studies for trial in study.trials()]
    made.runs = sum(trial.state == "finished" for trial in trials)
    left = sum(study.n_left for study in one.studies)
    if n_failed := sum(trial.state == "failed" for trial in trials):
        table = one.experiment.sweep.folder(one.options.out) / "trials_wide.csv"
        made.failed.append(
            f"{n_failed} runs: see the reasons in {table}, retry them with --retry-failed"
        )
    if left:
        # Other machines may have what this one lacks, and be training.
        made.skipped += missing or [
            unusable(one.experiment, one.options) or f"{left} runs were not trained"
        ]
    instructions = (
        [] if missing else needs.missing_instructions(one.experiment, one.options.data_root)
    )
    made.evaluated = sum(trial.state == "finished" for trial in one.evaluations.queue.trials())
    _add(made, one, one.evaluations.queue, missing)
    if one.completions is not None:
        _add(made, one, one.completions.queue, missing or instructions)
    # The same may be missing for training, evaluations and completions.
    others = [] if missing else needs.missing_other(one.experiment, one.options.data_root)
    made.skipped = list(dict.fromkeys([*made.skipped, *instructions, *others]))
    return made


def _add(
    made: ExperimentOutcome, one: ExperimentQueues, queue: RunQueue, missing: list[str]
) -> None:
    """Say which evaluations or completions failed or are left."""
    trials = {trial.cell: trial for trial in queue.trials()}
    failed = [trial for trial in trials.values() if trial.state == "failed"]
    made.failed += [f"{one.options.out}/{trial.cell}: {trial.facts['reason']}" for trial in failed]
    if left := sum(cell not in trials or not trials[cell].has_ended for cell, _ in queue.cells()):
        made.skipped += missing or [unusable(one.experiment, one.options) or f"{left} {queue.LEFT}"]


def summary(outcomes: Sequence[ExperimentOutcome]) -> list[str]:
    """One line per experiment, followed by what was skipped or failed."""
    lines = []
    for outcome in outcomes:
        lines.append(outcome.summary())
        lines += [f"    {line}" for line in outcome.problems()]
    return lines
