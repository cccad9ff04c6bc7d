"""Run the experiments of a scale: sweeps, evaluations, and one report about all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from cudt import report
from cudt.report import Report
from cudt.reproduce import evaluation, generated, needs
from cudt.reproduce import plan as plans
from cudt.reproduce.evaluation import EvaluationJob
from cudt.reproduce.plan import ReproductionPlan, own_options
from cudt.reproduce.scale import GENERATED, Experiment, Reproduction
from cudt.runs.options import RunOptions
from cudt.sweep.display import SweepDisplay
from cudt.sweep.run_sweep import SweepOptions, first_task, run_sweep
from cudt.utils import device
from cudt.utils.errors import TrainingInterruptedError, UserError


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


def reproduce(reproduction: Reproduction, options: RunOptions, console: Console, *, only_plan: bool = False) -> bool:
    """Print the plan, run it and write the report; returns whether everything was done. The same call resumes it."""
    refusal = _refusal(reproduction, options)
    try:
        _make_data(reproduction, options, only_plan or bool(refusal))
        plan = plans.make(reproduction, options)
        console.print(plans.table(plan))
        _print(console, "\n".join(plans.lines(plan)))
        if only_plan:
            return True
        if refusal:
            raise UserError(refusal)
        return _run_and_report(plan, options, console)
    except KeyboardInterrupt:
        raise TrainingInterruptedError(f"{options.out}: interrupted; run the same command to resume") from None


def _refusal(reproduction: Reproduction, options: RunOptions) -> str:
    """Why the scale is refused on this machine (it would take years without a GPU); empty if it is not."""
    if not reproduction.scale.needs_gpu or options.device == "cpu" or device.choose(options.device).type != "cpu":
        return ""
    return (
        f"scale {reproduction.name} needs a GPU and torch finds none; nothing was run. Use a machine with one, "
        "or a smaller scale (--scale cpu or smoke; make reproduce-paper SCALE=cpu or smoke), or run it on "
        "the CPU anyway with --device cpu (make: DEVICE=cpu)"
    )


def _make_data(reproduction: Reproduction, options: RunOptions, only_plan: bool) -> None:
    """Generate the data of generated experiments; `--plan` writes nothing."""
    if not only_plan and any(experiment.listed.generated for experiment in reproduction.experiments):
        generated.make(options.out / GENERATED)


def _run_and_report(plan: ReproductionPlan, options: RunOptions, console: Console) -> bool:
    outcomes = run_experiments(plan, options, console)
    written = write_report(options.out, console)
    _print(console, "\n".join(summary(outcomes)))
    if written is not None:
        if written.verdict:
            console.print(written.verdict, highlight=False)
        _print(console, f"report: {written.page}\ntable:  {written.table_path}")
    return all(outcome.is_done for outcome in outcomes)


def run_experiments(plan: ReproductionPlan, options: RunOptions, console: Console) -> list[ExperimentOutcome]:
    """Run every experiment, cheapest first; one that fails, or whose data are missing, does not stop the others."""
    outcomes = []
    for number, row in enumerate(plan.rows, 1):
        console.rule(f"{number} of {len(plan.rows)}: {row.experiment.name}", align="left")
        outcome = ExperimentOutcome(row.experiment)
        outcomes.append(outcome)
        _run_experiment(outcome, own_options(row.experiment, options), console)
        for line in outcome.problems():
            _print(console, line)
    return outcomes


def _run_experiment(outcome: ExperimentOutcome, options: SweepOptions, console: Console) -> None:
    experiment = outcome.experiment
    if (missing := needs.missing(experiment, options.data_root)) or (missing := _unreadable(experiment, options)):
        outcome.skipped += missing
        return
    try:
        made = run_sweep(experiment.sweep, options, SweepDisplay(console))
    except (UserError, OSError) as error:
        outcome.failed.append(str(error))
        return
    outcome.runs = made.n_finished
    if made.n_failed:
        table = made.folder / "trials_wide.csv"
        outcome.failed.append(f"{made.n_failed} runs: see the reasons in {table}, retry them with --retry-failed")
    outcome.skipped += needs.missing_instructions(experiment, options.data_root)
    _evaluate(outcome, evaluation.jobs(experiment, options, made.trials), options, console)


def _unreadable(experiment: Experiment, options: RunOptions) -> list[str]:
    """Why the task cannot be built although no file is missing."""
    try:
        first_task(experiment.sweep, options)
    except UserError as error:
        return [str(error)]
    return []


def _evaluate(outcome: ExperimentOutcome, jobs: list[EvaluationJob], options: RunOptions, console: Console) -> None:
    logs = outcome.experiment.sweep.folder(options.out) / "logs" / "evaluation"
    try:
        outcome.failed += evaluation.run_jobs(jobs, options, logs, lambda text: _print(console, text))
        outcome.evaluated = sum(job.is_done() for job in jobs)
        for path in evaluation.compare_completions(jobs):
            _print(console, f"completions side by side: {path}")
    except (UserError, OSError) as error:
        outcome.failed.append(str(error))


def write_report(out: Path, console: Console) -> Report | None:
    """Write the report about every run below the out folder; None if there is nothing to report."""
    try:
        made = report.write([out], out / "report")
    except UserError as error:
        _print(console, f"no report was written: {error}")
        return None
    for warning in made.warnings:
        _print(console, f"warning: {warning}", style="yellow")
    return made


def summary(outcomes: list[ExperimentOutcome]) -> list[str]:
    """One line per experiment, followed by what was skipped or failed."""
    lines = []
    for outcome in outcomes:
        lines.append(outcome.summary())
        lines += [f"    {line}" for line in outcome.problems()]
    return lines


def _print(console: Console, text: str, style: str = "") -> None:
    """Print text as it is, without coloured numbers or wrapped paths."""
    console.print(text, style=style, soft_wrap=True, highlight=False)
