"""How the experiments of a reproduction ended, on all machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from cudt.reproduce import evaluation, needs
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
    _add_evaluations(made, one, here, homes)
    if not missing:
        made.skipped += needs.missing_instructions(one.experiment, one.options.data_root)
    return made


def _add_evaluations(made: ExperimentOutcome, one: ExperimentQueues, here: Home, homes: Sequence[Home]) -> None:
    """Count the evaluated runs of all homes, and say what failed or is left."""
    left: Counter[str] = Counter()
    done: set[tuple[str, str]] = set()
    for home in homes:
        queue = one.evaluations.queue if home.id == here.id else one.evaluations_in(home.id)
        for trial in queue.trials():
            if trial.state == "failed":
                made.failed.append(
                    f"{home.folder if home != here else one.options.out}/{trial.cell}: {trial.facts['reason']}"
                )
            elif trial.state == "finished":
                done.add((home.id, str(trial.cell)))
    for run in evaluation.chosen(one.experiment, one.studies):
        home_id = run.home or here.id
        if (home_id, run.path) in done:
            made.evaluated += 1
        else:
            left[home_id] += 1
    folders = {home.id: home for home in homes}
    if one.completions is not None:
        trials = one.completions.queue.trials()
        made.failed += [f"{trial.cell}: {trial.facts['reason']}" for trial in trials if trial.state == "failed"]
    for home_id, count in left.items():
        if home_id != here.id and home_id in folders:
            home = folders[home_id]
            made.skipped.append(
                f"{count} runs are in {home.folder} on {home.host} and not evaluated yet; evaluate them there with "
                "`cudt reproduce --join`"
            )


def summary(outcomes: Sequence[ExperimentOutcome]) -> list[str]:
    """One line per experiment, followed by what was skipped or failed."""
    lines = []
    for outcome in outcomes:
        lines.append(outcome.summary())
        lines += [f"    {line}" for line in outcome.problems()]
    return lines
