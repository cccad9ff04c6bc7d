"""How the experiments of a reproduction ended, on all machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cudt.reproduce import needs
from cudt.reproduce.evaluation import HomeQueue
from cudt.reproduce.experiment_worker import unusable
from cudt.reproduce.queues import ExperimentQueues
from cudt.reproduce.scale import Experiment
from cudt.reproduce.stored import Home


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


def of(
    queues: Sequence[ExperimentQueues], missing: Sequence[list[str]], here: Home, homes: Sequence[Home]
) -> list[ExperimentOutcome]:
    """The outcome of each experiment; `missing` has what each lacks on this machine."""
    return [_of(one, items, here, homes) for one, items in zip(queues, missing, strict=True)]


def _of(one: ExperimentQueues, missing: list[str], here: Home, homes: Sequence[Home]) -> ExperimentOutcome:
    made = ExperimentOutcome(one.experiment)
    trials = [trial for study in one.studies for trial in study.trials()]
    made.runs = sum(trial.state == "finished" for trial in trials)
    left = sum(study.n_left for study in one.studies)
    if n_failed := sum(trial.state == "failed" for trial in trials):
        table = one.experiment.sweep.folder(one.options.out) / "trials_wide.csv"
        made.failed.append(f"{n_failed} runs: see the reasons in {table}, retry them with --retry-failed")
    if left:
        # Other machines may have what this one lacks, and be training.
        made.skipped += missing or [unusable(one.experiment, one.options) or f"{left} runs were not trained"]
    instructions = [] if missing else needs.missing_instructions(one.experiment, one.options.data_root)
    for home in homes:
        evaluations, completions = one.evaluations_in(home.id), one.completions_in(home.id)
        made.evaluated += sum(trial.state == "finished" for trial in evaluations.trials())
        for queue, lacking in ((evaluations, missing), (completions, missing or instructions)):
            _add(made, one, queue, home, lacking if home.id == here.id else None)
    # The same may be missing for training, evaluations and completions.
    others = [] if missing else needs.missing_other(one.experiment, one.options.data_root)
    made.skipped = list(dict.fromkeys([*made.skipped, *instructions, *others]))
    return made


def _add(
    made: ExperimentOutcome, one: ExperimentQueues, queue: HomeQueue, home: Home, lacking: list[str] | None
) -> None:
    """Say which evaluations or completions of a home failed or are left; `lacking` is None for another home."""
    trials = {trial.cell: trial for trial in queue.trials()}
    folder = home.folder if lacking is None else one.options.out
    failed = [trial for trial in trials.values() if trial.state == "failed"]
    made.failed += [f"{folder}/{trial.cell}: {trial.facts['reason']}" for trial in failed]
    left = sum(cell not in trials or not trials[cell].has_ended for cell, _ in queue.cells())
    if left and lacking is not None:
        made.skipped += lacking or [unusable(one.experiment, one.options) or f"{left} {queue.LEFT}"]
    elif left:
        made.skipped.append(
            f"{left} {queue.LEFT} in {folder} on {home.host}; run `cudt reproduce --join` there to do that"
        )


def summary(outcomes: Sequence[ExperimentOutcome]) -> list[str]:
    """One line per experiment, followed by what was skipped or failed."""
    lines = []
    for outcome in outcomes:
        lines.append(outcome.summary())
        lines += [f"    {line}" for line in outcome.problems()]
    return lines
