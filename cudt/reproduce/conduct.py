"""The experiments of a scale from the first to the last: sweeps, evaluations, and one report about all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from cudt import report
from cudt.report import Report
from cudt.reproduce import evaluation, generated, needs
from cudt.reproduce import plan as plans
from cudt.reproduce.plan import Plan, own_options
from cudt.reproduce.scale import GENERATED, Experiment, Reproduction
from cudt.sweep import conduct as sweeps
from cudt.sweep.conduct import Options
from cudt.sweep.display import SweepDisplay
from cudt.utils import device
from cudt.utils.errors import TrainingInterruptedError, UserError


@dataclass
class Outcome:
    """What became of an experiment."""

    experiment: Experiment
    runs: int = 0
    """Trained, in this command or before."""
    evaluated: int = 0
    left_out: list[str] = field(default_factory=list)
    """What was not tried, and why."""
    failed: list[str] = field(default_factory=list)
    """What was tried, and why it failed."""

    @property
    def is_done(self) -> bool:
        return not self.left_out and not self.failed

    def problems(self) -> list[str]:
        """What is not done, and why."""
        left_out = [f"left out: {problem}" for problem in self.left_out]
        return left_out + [f"failed: {problem}" for problem in self.failed]

    def told(self) -> str:
        state = "failed in part" if self.failed else "done"
        if self.left_out and not self.failed:
            state = "left out in part" if self.runs else "left out"
        return f"{state:17} {self.experiment.name}: {self.runs} runs, {self.evaluated} evaluated"


def reproduce(reproduction: Reproduction, options: Options, console: Console, *, only_plan: bool = False) -> bool:
    """Tell the plan, do it, and report; whether all was done. However it ends, the same call goes on."""
    refusal = _refusal(reproduction, options)
    try:
        _make_data(reproduction, options, only_plan or bool(refusal))
        plan = plans.make(reproduction, options)
        console.print(plans.table(plan))
        _tell(console, "\n".join(plans.lines(plan)))
        if only_plan:
            return True
        if refusal:
            raise UserError(refusal)
        return _done_and_reported(plan, options, console)
    except KeyboardInterrupt:
        raise TrainingInterruptedError(f"{options.out}: interrupted; the same command goes on from here") from None


def _refusal(reproduction: Reproduction, options: Options) -> str:
    """Why a scale is not begun that would take a machine without a GPU years; nothing where it is."""
    if not reproduction.scale.needs_gpu or options.device == "cpu" or device.choose(options.device).type == "cuda":
        return ""
    return (
        f"scale {reproduction.name} is for GPUs and torch sees no CUDA device here, so nothing was begun; run it on a "
        "machine with CUDA, or a smaller one here (--scale cpu or smoke; make reproduce-paper SCALE=cpu or smoke), "
        "or say --device cpu (make: DEVICE=cpu) to do it here all the same"
    )


def _make_data(reproduction: Reproduction, options: Options, only_plan: bool) -> None:
    """What the command makes for itself; a plan alone writes nothing."""
    if not only_plan and any(experiment.listed.generated for experiment in reproduction.experiments):
        generated.make(options.out / GENERATED)


def _done_and_reported(plan: Plan, options: Options, console: Console) -> bool:
    outcomes = conduct(plan, options, console)
    written = write_report(options.out, console)
    _tell(console, "\n".join(summary(outcomes)))
    if written is not None:
        if written.verdict:
            console.print(written.verdict, highlight=False)
        _tell(console, f"look at {written.page}\n     or {written.table_path}")
    return all(outcome.is_done for outcome in outcomes)


def conduct(plan: Plan, options: Options, console: Console) -> list[Outcome]:
    """Do every experiment, the cheapest first; what fails or is missing does not keep the others from being done."""
    outcomes = []
    for number, row in enumerate(plan.rows, 1):
        console.rule(f"{number} of {len(plan.rows)}: {row.experiment.name}", align="left")
        outcome = Outcome(row.experiment)
        outcomes.append(outcome)
        _do(outcome, own_options(row.experiment, options), console)
        for line in outcome.problems():
            _tell(console, line)
    return outcomes


def _do(outcome: Outcome, options: Options, console: Console) -> None:
    experiment = outcome.experiment
    if (missing := needs.missing(experiment, options.data_root)) or (missing := _unreadable(experiment, options)):
        outcome.left_out += missing
        return
    try:
        made = sweeps.conduct(experiment.sweep, options, SweepDisplay(console))
    except (UserError, OSError) as error:
        outcome.failed.append(str(error))
        return
    outcome.runs = made.n_finished
    if made.n_failed:
        table = made.folder / "trials_wide.csv"
        outcome.failed.append(f"{made.n_failed} runs; {table} says why, and --retry-failed tries them again")
    outcome.left_out += needs.missing_instructions(experiment, options.data_root)
    _evaluate(outcome, evaluation.jobs(experiment, options, made.trials), options, console)


def _unreadable(experiment: Experiment, options: Options) -> list[str]:
    """Why the task cannot be built, though nothing seemed to be missing."""
    try:
        sweeps.first_task(experiment.sweep, options)
    except UserError as error:
        return [str(error)]
    return []


def _evaluate(outcome: Outcome, jobs: list[evaluation.Job], options: Options, console: Console) -> None:
    logs = outcome.experiment.sweep.folder(options.out) / "logs" / "evaluation"
    try:
        outcome.failed += evaluation.conduct(jobs, options, logs, lambda text: _tell(console, text))
        outcome.evaluated = sum(job.is_done() for job in jobs)
        for path in evaluation.put_side_by_side(jobs):
            _tell(console, f"side by side in {path}")
    except (UserError, OSError) as error:
        outcome.failed.append(str(error))


def write_report(out: Path, console: Console) -> Report | None:
    """The report about everything below the out folder; None where there is nothing to report."""
    try:
        made = report.write([out], out / "report")
    except UserError as error:
        _tell(console, f"no report: {error}")
        return None
    for warning in made.warnings:
        _tell(console, f"note: {warning}", style="yellow")
    return made


def summary(outcomes: list[Outcome]) -> list[str]:
    """A line for each experiment, and below it what is not done."""
    told = []
    for outcome in outcomes:
        told.append(outcome.told())
        told += [f"    {line}" for line in outcome.problems()]
    return told


def _tell(console: Console, text: str, style: str = "") -> None:
    """A line as it is: no colours for numbers, no wrapping of paths."""
    console.print(text, style=style, soft_wrap=True, highlight=False)
