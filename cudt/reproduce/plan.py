"""The plan of a reproduction: what is left of each experiment and what it would cost, without running any."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from rich.table import Table
from rich.text import Text

from cudt.reproduce import cost, generated, needs, progress
from cudt.reproduce.progress import NO_PROGRESS, Progress
from cudt.reproduce.queues import own_options
from cudt.reproduce.scale import Experiment, Reproduction, Throughput
from cudt.reproduce.stored import ReproduceOptions, Turn
from cudt.sweep import plan as sweep_plans
from cudt.sweep import startup
from cudt.sweep.holder import counted
from cudt.sweep.plan import TO_DO
from cudt.sweep.run_sweep import SweepOptions
from cudt.utils import device
from cudt.utils.progress import duration
from cudt.utils.ranges import ranges

#: Seconds after which nothing more is timed, so that a plan is printed soon.
_TIMING_BUDGET = 60.0
#: Seconds of the report per run, measured with the smoke scale.
_REPORT_PER_RUN = 0.2


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment: its progress, what it is missing, and what the rest costs."""

    experiment: Experiment
    cells: int
    left: int
    """Runs that are not trained yet."""
    evaluations: int
    evaluations_left: int
    missing: list[str]
    """What it cannot run without."""
    unanswerable: list[str]
    """What only its completions are missing."""
    untestable: list[str]
    """What only its evaluations on other data are missing."""
    operations: float
    """Estimated floating-point operations of the rest."""
    overhead: float
    """Seconds of the rest that are not computing: starting workers, and the overhead of each run."""
    seconds: float | None
    """Of the rest, from timings on this machine, overhead included; None if it was not timed."""
    untimed: str
    """Why it was not timed; empty if it was."""
    spent: Progress = NO_PROGRESS
    """What was measured so far."""

    @property
    def n_left(self) -> int:
        """Trials of training and evaluation that are left."""
        return self.left + self.evaluations_left

    def estimated_seconds(self, throughput: Throughput) -> float:
        """Seconds of the rest on a machine of this throughput."""
        return self.operations / (throughput.tflops * 1e12) + self.overhead


@dataclass(frozen=True)
class ReproductionPlan:
    """All experiments, cheapest first; their costs are in one unit and add up.

    That is time on this machine where at least one experiment was timed on it: the others are estimated at the
    throughput that those had. Otherwise it is the unit of the scale's `throughput`.
    """

    rows: list[PlannedExperiment]
    throughput: Throughput
    workers: int
    """Those of this command, and those of others that are running."""
    hosts: tuple[str, ...] = ()
    """The hosts of those that are running."""

    @cached_property
    def measured(self) -> Throughput | None:
        """The throughput of the experiments that were timed on this machine; None where none was."""
        timed = [row for row in self.rows if row.seconds]
        computing = sum((row.seconds or 0.0) - row.overhead for row in timed)
        if computing <= 0:
            return None
        tflops = sum(row.operations for row in timed) / computing / 1e12
        return Throughput(tflops=tflops, machine="this machine, with the timed experiments", unit="h")

    def seconds_of(self, row: PlannedExperiment) -> float:
        """What the rest of an experiment costs, start-up included."""
        return row.estimated_seconds(self.measured or self.throughput) if row.seconds is None else row.seconds

    @property
    def report(self) -> float:
        """Seconds of the report; nothing on a machine that is not this one, or if nothing is left."""
        is_left = any(row.left or row.evaluations_left for row in self.rows)
        n_runs = sum(row.cells for row in self.rows if not row.missing)
        return _REPORT_PER_RUN * n_runs if self.measured and is_left else 0.0

    def turns(self, reproduction: Reproduction) -> list[Turn]:
        """The order in which workers take the experiments, with the cost of a trial of each."""
        numbers = {experiment.name: number for number, experiment in enumerate(reproduction.experiments)}
        return [Turn(numbers[row.experiment.name], self.seconds_of(row) / max(1, row.n_left)) for row in self.rows]

    def text(self, seconds: float) -> str:
        """A cost in the plan's unit."""
        return duration(seconds) if self.measured else _amount(seconds, self.throughput.unit)


def make(reproduction: Reproduction, options: ReproduceOptions, *, is_running: bool = False) -> ReproductionPlan:
    """Find out what is left of each experiment, estimate its cost, and time some of it.

    The cost is shared by the workers that are running now, on any machine, and those that this command starts. With
    `is_running` it starts none if there are others.
    """
    scale = reproduction.scale
    untimed = [_untimed(experiment, options) for experiment in reproduction.experiments]
    in_order = sorted(untimed, key=lambda row: row.operations)
    reason = "no GPU" if scale.needs_gpu and device.choose(options.device).type == "cpu" else ""
    with _restored_torch():
        timed = list(_timed(in_order, options, reason))
    others = progress.alive(reproduction, options)
    own = 0 if is_running and others else options.workers
    hosts = [holder["host"] for holder in others] + ([socket.gethostname()] if own else [])
    made = ReproductionPlan(timed, scale.throughput, len(others) + own, tuple(hosts))
    return replace(made, rows=sorted(timed, key=made.seconds_of))


def _untimed(experiment: Experiment, options: ReproduceOptions) -> PlannedExperiment:
    """An experiment without timings."""
    own = own_options(experiment, options)
    sweep, nominal = experiment.sweep, experiment.nominal
    cells = list(sweep_plans.cells(sweep, own))
    left = [recipe for _, recipe, state in cells if recipe is not None and state in TO_DO]
    training = sum(cost.training(recipe, nominal, sweep.gammas) for recipe in left)
    spent = progress.of(experiment, own)
    evaluations = cost.n_evaluations(experiment)
    evaluations_left = evaluations - spent.evaluated if not left else evaluations
    # Generated data need not exist yet: the command generates them.
    is_generated = experiment.listed.generated
    unanswerable = [] if is_generated else needs.missing_instructions(experiment, own.data_root)
    n_other = len(needs.available_other(experiment, own.data_root))
    whole = cost.evaluation(experiment, answers=not unanswerable, n_other=n_other)
    return PlannedExperiment(
        experiment,
        len(cells),
        len(left),
        evaluations,
        evaluations_left,
        missing=[] if is_generated else needs.missing(experiment, own.data_root),
        unanswerable=unanswerable,
        untestable=needs.missing_other(experiment, own.data_root),
        # An experiment that only chooses settings evaluates nothing.
        operations=training + (whole * evaluations_left / evaluations if evaluations else 0.0),
        overhead=startup.seconds(len(left) + evaluations_left, options.workers),
        seconds=None,
        untimed="",
        spent=spent,
    )


def _timed(rows: Iterable[PlannedExperiment], options: ReproduceOptions, reason: str) -> Iterator[PlannedExperiment]:
    """The rows with timings, in their order, until the timing budget is spent."""
    estimates: dict[str, float] = {}
    ends = time.monotonic() + _TIMING_BUDGET
    for row in rows:
        own = own_options(row.experiment, options)
        if not row.left and not row.evaluations_left:
            yield replace(row, seconds=0.0)
        elif row.missing:
            yield replace(row, untimed="missing")
        elif row.spent.operations:
            # Measured by trials of this experiment, on whatever machines run them.
            yield replace(row, seconds=row.spent.per_operation * row.operations + row.overhead)
        elif reason or time.monotonic() > ends:
            yield replace(row, untimed=reason or f"timing stopped after {_TIMING_BUDGET:.0f} s")
        elif row.experiment.listed.generated and not generated.exists(own.data_root or own.out):
            yield replace(row, untimed="data not generated yet")
        else:
            yield _with_time(row, own, estimates)


def _with_time(row: PlannedExperiment, own: SweepOptions, estimates: dict[str, float]) -> PlannedExperiment:
    """Time the training; evaluation is assumed to run at the same number of operations per second."""
    sweep, nominal = row.experiment.sweep, row.experiment.nominal
    try:
        made = sweep_plans.make(sweep, own, estimates)
    except (RuntimeError, MemoryError) as error:
        # For example out of memory; the other experiments can still be planned.
        return replace(row, untimed=f"timing failed: {str(error).strip().splitlines()[0][:80]}")
    if made.problem:
        return replace(row, missing=[made.problem], untimed="missing")
    training = sum(cell.seconds or 0.0 for cell in made.to_do)
    recipes = [recipe for _, recipe, state in sweep_plans.cells(sweep, own) if recipe is not None and state in TO_DO]
    counted_operations = sum(cost.training(recipe, nominal, sweep.gammas) for recipe in recipes)
    if not counted_operations:
        return replace(row, untimed="nothing left to time")
    return replace(row, seconds=training / counted_operations * row.operations + row.overhead)


@contextmanager
def _restored_torch() -> Iterator[None]:
    """Undo what timing changes: the number of threads, and memory that workers will need."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.collect()
        device.empty_cache()


# ---------------------------------------------------------------- printing


def table(plan: ReproductionPlan) -> Table:
    """Each experiment and what it reproduces, in the order in which they run."""
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "experiment", "runs", "evaluated", "about"):
        right = name != "experiment"
        rows.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for number, row in enumerate(plan.rows, 1):
        rows.add_row(
            str(number),
            Text.assemble(row.experiment.name, "\n", (row.experiment.listed.reproduces, "dim")),
            f"{row.cells - row.left}/{row.cells}",
            f"{row.evaluations - row.evaluations_left}/{row.evaluations}",
            _cost(row, plan),
        )
    if plan.report:
        rows.add_row("", "report", "", "", plan.text(plan.report))
    return rows


def _cost(row: PlannedExperiment, plan: ReproductionPlan) -> str:
    if row.seconds == 0:
        return "done"
    cost_text = plan.text(plan.seconds_of(row))
    marks = "*" * bool(row.missing) + "†" * bool(row.unanswerable) + "‡" * bool(row.untestable)
    return f"{cost_text} {marks}".rstrip()


def _amount(seconds: float, unit: str) -> str:
    """`1,180 GPU-h`, `0.45 GPU-h`, `4.1 GPU-min` or `8 GPU-s`."""
    if unit.endswith("h") and seconds < 360:
        kind = unit.removesuffix("h")
        return f"{seconds:.0f} {kind}s" if seconds < 60 else f"{seconds / 60:.1f} {kind}min"
    return f"{seconds / 3600:.2g} {unit}" if seconds < 36_000 else f"{seconds / 3600:,.0f} {unit}"


def lines(plan: ReproductionPlan) -> list[str]:
    """The lines below the table: what is missing, the totals, and what the estimates assume."""
    text = list(_missing_lines(plan))
    left, evaluations = sum(row.left for row in plan.rows), sum(row.evaluations_left for row in plan.rows)
    total = f"{left:,} runs to train and {evaluations:,} to evaluate"
    text.append(total + _total_cost(plan))
    if estimated := [row for row in plan.rows if row.seconds is None]:
        reasons = ", ".join(dict.fromkeys(row.untimed for row in estimated))
        throughput = plan.measured or plan.throughput
        text.append(
            f"estimated, because not timed ({reasons}): 6 · multiplications · positions · examples · epochs "
            f"for training, 2 · … for validation and evaluation, at {throughput.tflops:.3g} TFLOP/s "
            f"({throughput.machine})"
        )
    return text


def _total_cost(plan: ReproductionPlan) -> str:
    """The sum of the table's last column, start-up included, and what of it is skipped."""
    seconds = sum(map(plan.seconds_of, plan.rows)) + plan.report
    if not seconds:
        return ""
    text = f"; about {plan.text(seconds)}" + (" on this machine" if plan.measured else " by estimate")
    if plan.measured and plan.workers > 1:
        text += f", {duration(seconds / plan.workers)} with {counted(plan.workers, plan.hosts)}"
    if skipped := sum(plan.seconds_of(row) for row in plan.rows if row.missing):
        text += f"; {plan.text(skipped)} of it for what is skipped"
    return text


def _missing_lines(plan: ReproductionPlan) -> Iterator[str]:
    """Each missing item once, with the numbers of the experiments that need it."""
    yield from _needed("* missing; the experiments that need it are skipped:", [row.missing for row in plan.rows])
    yield from _needed("† missing; only the completions are skipped:", [row.unanswerable for row in plan.rows])
    yield from _needed("‡ missing; only evaluations on it are skipped:", [row.untestable for row in plan.rows])


def _needed(heading: str, of_rows: list[list[str]]) -> Iterator[str]:
    needed: dict[str, list[int]] = {}
    for number, items in enumerate(of_rows, 1):
        for item in items:
            needed.setdefault(item, []).append(number)
    if needed:
        yield heading
    for item, numbers in needed.items():
        yield f"  for {ranges(numbers)}: {item}"
