"""What reproducing a scale would do, and what it would cost, without doing any of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from rich.table import Table

from cudt import device
from cudt.reproduce import evaluation, generated, needs, reckon
from cudt.reproduce.scale import Experiment, Reproduction, Throughput
from cudt.sweep import plan as sweep_plans
from cudt.sweep.conduct import Options
from cudt.sweep.display import duration

#: Seconds after which nothing more is timed: a plan is looked at before anything is done.
_PATIENCE = 60.0
_TO_DO = ("to do", "begun")


@dataclass(frozen=True)
class Row:
    """An experiment: how far it is, what it lacks, and what is left to pay."""

    experiment: Experiment
    cells: int
    left: int
    """Runs to be trained."""
    evaluations: int
    evaluations_left: int
    missing: list[str]
    """What keeps it, or its completions, from being done."""
    operations: float
    """What is left, reckoned."""
    seconds: float | None
    """What is left, timed on this machine."""
    untimed: str
    """Why it was not timed."""

    def reckoned(self, throughput: Throughput) -> float:
        """Seconds on the machine that reckoning is for."""
        return self.operations / (throughput.tflops * 1e12)


@dataclass(frozen=True)
class Plan:
    """All experiments, the cheapest first."""

    rows: list[Row]
    throughput: Throughput
    workers: int


def make(reproduction: Reproduction, options: Options) -> Plan:
    """Look at what is there, count what is left, and time some of it."""
    scale = reproduction.scale
    looked = [_looked_at(experiment, options) for experiment in reproduction.experiments]
    in_order = sorted(looked, key=lambda row: row.operations)
    why_not = "no GPU" if scale.needs_gpu and device.choose(options.device).type != "cuda" else ""
    with _as_before():
        timed = list(_timed(in_order, options, why_not))
    return Plan(sorted(timed, key=lambda row: _order(row, scale.throughput)), scale.throughput, options.workers)


def own_options(experiment: Experiment, options: Options) -> Options:
    """The options with the experiment's own data root."""
    return replace(options, data_root=experiment.data_root(options.data_root, options.out))


def _looked_at(experiment: Experiment, options: Options) -> Row:
    """A row without a time."""
    own = own_options(experiment, options)
    sweep, nominal = experiment.sweep, experiment.nominal
    cells = list(sweep_plans.cells(sweep, own))
    left = [recipe for _, recipe, state in cells if recipe is not None and state in _TO_DO]
    training = sum(reckon.training(recipe, nominal, sweep.gammas) for recipe in left)
    evaluations = reckon.n_evaluations(experiment)
    evaluations_left = evaluations - evaluation.n_done(experiment, own) if not left else evaluations
    operations = training + reckon.evaluation(experiment) * evaluations_left / evaluations
    missing = _missing(experiment, own)
    return Row(experiment, len(cells), len(left), evaluations, evaluations_left, missing, operations, None, "")


def _missing(experiment: Experiment, own: Options) -> list[str]:
    """What the command cannot make for itself."""
    if experiment.listed.generated:
        return []
    found = needs.missing(experiment, own.data_root)
    return found + needs.missing_instructions(experiment, own.data_root)


def _timed(rows: Iterable[Row], options: Options, why_not: str) -> Iterator[Row]:
    """The rows with what could be timed, the cheapest first, for as long as patience lasts."""
    estimates: dict[str, float] = {}
    ends = time.monotonic() + _PATIENCE
    for row in rows:
        own = own_options(row.experiment, options)
        if not row.left and not row.evaluations_left:
            yield replace(row, seconds=0.0)
        elif row.missing:
            yield replace(row, untimed="missing")
        elif why_not or time.monotonic() > ends:
            yield replace(row, untimed=why_not or f"timing ended after {_PATIENCE:.0f} s")
        elif row.experiment.listed.generated and not generated.is_there(own.data_root or own.out):
            yield replace(row, untimed="its data are not made yet")
        else:
            yield _with_time(row, own, estimates)


def _with_time(row: Row, own: Options, estimates: dict[str, float]) -> Row:
    """Training is timed; evaluation is taken to cost as much for each operation."""
    sweep, nominal = row.experiment.sweep, row.experiment.nominal
    try:
        made = sweep_plans.make(sweep, own, estimates)
    except (RuntimeError, MemoryError) as error:
        # Too large for this machine, say; running it will tell, and the others can be done.
        return replace(row, untimed=f"timing failed: {str(error).strip().splitlines()[0][:80]}")
    if made.problem:
        return replace(row, missing=[made.problem], untimed="missing")
    training = sum(cell.seconds or 0.0 for cell in made.to_do)
    recipes = [recipe for _, recipe, state in sweep_plans.cells(sweep, own) if recipe is not None and state in _TO_DO]
    counted = sum(reckon.training(recipe, nominal, sweep.gammas) for recipe in recipes)
    if not counted:
        seconds, counted = evaluation.spent(row.experiment, own)
        if not counted:
            return replace(row, untimed="nothing is left to time")
        return replace(row, seconds=seconds / counted * row.operations)
    return replace(row, seconds=training / counted * row.operations)


@contextmanager
def _as_before() -> Iterator[None]:
    """Timing takes a worker's share of the cores, and memory that workers will need."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _order(row: Row, throughput: Throughput) -> float:
    return row.reckoned(throughput) if row.seconds is None else row.seconds


# ---------------------------------------------------------------- for people


def table(plan: Plan) -> Table:
    """A row for each experiment, in the order in which they are done."""
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "experiment", "reproduces", "runs", "evaluated", "about"):
        right = name in ("", "runs", "evaluated", "about")
        rows.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for number, row in enumerate(plan.rows, 1):
        rows.add_row(
            str(number),
            row.experiment.name,
            row.experiment.listed.reproduces,
            f"{row.cells - row.left} of {row.cells}",
            f"{row.evaluations - row.evaluations_left} of {row.evaluations}",
            _cost(row, plan.throughput),
        )
    return rows


def _cost(row: Row, throughput: Throughput) -> str:
    if row.seconds is not None:
        return "done" if not row.seconds else duration(row.seconds)
    return f"{_hours(row.reckoned(throughput))} {throughput.unit}" + (" *" if row.missing else "")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2g}" if seconds < 36_000 else f"{seconds / 3600:,.0f}"


def lines(plan: Plan) -> list[str]:
    """Below the table: what is missing, the sums, and what the reckoning assumes."""
    told = list(_missing_lines(plan))
    left, evaluations = sum(row.left for row in plan.rows), sum(row.evaluations_left for row in plan.rows)
    total = f"{left:,} runs to train and {evaluations:,} to evaluate"
    timed = [row.seconds for row in plan.rows if row.seconds is not None]
    if sum(timed):
        shared = f", {duration(sum(timed) / plan.workers)} with {plan.workers} workers" if plan.workers > 1 else ""
        total += f"; about {duration(sum(timed))} on this machine{shared}"
    if reckoned := [row for row in plan.rows if row.seconds is None]:
        seconds = sum(row.reckoned(plan.throughput) for row in reckoned)
        total += f"; about {_hours(seconds)} {plan.throughput.unit} by reckoning"
    told.append(total)
    if reckoned:
        reasons = ", ".join(dict.fromkeys(row.untimed for row in reckoned))
        told.append(
            f"reckoned where it could not be timed ({reasons}): 6 · multiplications · positions · examples · epochs "
            f"for training, 2 · … for validation and evaluation, at {plan.throughput.tflops:g} TFLOP/s "
            f"({plan.throughput.machine})"
        )
    return told


def _missing_lines(plan: Plan) -> Iterator[str]:
    """Each thing that is missing once, with the numbers of the experiments that want it."""
    wanted: dict[str, list[int]] = {}
    for number, row in enumerate(plan.rows, 1):
        for what in row.missing:
            wanted.setdefault(what, []).append(number)
    if wanted:
        yield "* missing, and how to get it; what needs it is left out:"
    for what, numbers in wanted.items():
        yield f"  for {_ranges(numbers)}: {what}"


def _ranges(numbers: list[int]) -> str:
    """`1, 3-5`."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and groups[-1][-1] == number - 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups)
