"""What reproducing a scale would do, and what it would cost, without doing any of it."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from rich.table import Table
from rich.text import Text

from cudt.reproduce import evaluation, generated, needs, reckon
from cudt.reproduce.scale import Experiment, Reproduction, Throughput
from cudt.sweep import plan as sweep_plans
from cudt.sweep.conduct import Options
from cudt.sweep.display import duration
from cudt.utils import device

#: Seconds after which nothing more is timed: a plan is looked at before anything is done.
_PATIENCE = 60.0
_TO_DO = ("to do", "begun")
#: Seconds of a run that computing does not explain: data and model are made, files written. Measured with smoke.
_EACH_RUN = 1.0
#: Seconds of the report for each run, as measured with smoke.
_REPORT = 0.2
#: What a worker takes to start, to be slow at its first run and to end, in terms of importing what it needs.
_IMPORTS = 2.5
#: Seconds after which importing is not waited for.
_LONGEST_IMPORT = 20.0


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
    """What keeps it from being done."""
    unanswerable: list[str]
    """What keeps its completions alone from being made."""
    operations: float
    """What is left, reckoned."""
    overhead: float
    """Seconds of workers that are not spent computing: starting, and what each run takes besides."""
    seconds: float | None
    """What is left, timed on this machine, overhead included."""
    untimed: str
    """Why it was not timed."""

    def reckoned(self, throughput: Throughput) -> float:
        """Seconds on the machine that reckoning is for."""
        return self.operations / (throughput.tflops * 1e12) + self.overhead


@dataclass(frozen=True)
class Plan:
    """All experiments, the cheapest first."""

    rows: list[Row]
    throughput: Throughput
    workers: int


def make(reproduction: Reproduction, options: Options) -> Plan:
    """Look at what is there, count what is left, and time some of it."""
    scale = reproduction.scale
    starting = _IMPORTS * _importing()
    looked = [_looked_at(experiment, options, starting) for experiment in reproduction.experiments]
    in_order = sorted(looked, key=lambda row: row.operations)
    why_not = "no GPU" if scale.needs_gpu and device.choose(options.device).type != "cuda" else ""
    with _as_before():
        timed = list(_timed(in_order, options, why_not))
    return Plan(sorted(timed, key=lambda row: _order(row, scale.throughput)), scale.throughput, options.workers)


def own_options(experiment: Experiment, options: Options) -> Options:
    """The options with the experiment's own data root."""
    return replace(options, data_root=experiment.data_root(options.data_root, options.out))


def _importing() -> float:
    """Seconds that a new process takes to import what a worker needs."""
    began = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", "import cudt.sweep.cell"], capture_output=True, timeout=_LONGEST_IMPORT, check=False
        )
    return time.monotonic() - began


def _looked_at(experiment: Experiment, options: Options, starting: float) -> Row:
    """A row without a time; `starting` a worker takes so many seconds."""
    own = own_options(experiment, options)
    sweep, nominal = experiment.sweep, experiment.nominal
    cells = list(sweep_plans.cells(sweep, own))
    left = [recipe for _, recipe, state in cells if recipe is not None and state in _TO_DO]
    training = sum(reckon.training(recipe, nominal, sweep.gammas) for recipe in left)
    evaluations = reckon.n_evaluations(experiment)
    evaluations_left = evaluations - evaluation.n_done(experiment, own) if not left else evaluations
    # The command makes for itself what is generated.
    is_made = experiment.listed.generated
    unanswerable = [] if is_made else needs.missing_instructions(experiment, own.data_root)
    evaluating = reckon.evaluation(experiment, answers=not unanswerable) * evaluations_left / evaluations
    # Workers are started for training, and others for evaluating.
    started = sum(min(options.workers, jobs) for jobs in (len(left), evaluations_left))
    return Row(
        experiment,
        len(cells),
        len(left),
        evaluations,
        evaluations_left,
        missing=[] if is_made else needs.missing(experiment, own.data_root),
        unanswerable=unanswerable,
        operations=training + evaluating,
        overhead=started * starting + (len(left) + evaluations_left) * _EACH_RUN,
        seconds=None,
        untimed="",
    )


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
        return replace(row, seconds=seconds / counted * row.operations + row.overhead)
    return replace(row, seconds=training / counted * row.operations + row.overhead)


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
    """An experiment and below it what it is for, in the order in which they are done."""
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
            _cost(row, plan.throughput),
        )
    return rows


def _cost(row: Row, throughput: Throughput) -> str:
    if row.seconds == 0:
        return "done"
    told = duration(row.seconds) if row.seconds is not None else _amount(row.reckoned(throughput), throughput.unit)
    marks = "*" * bool(row.missing) + "†" * bool(row.unanswerable)
    return f"{told} {marks}".rstrip()


def _amount(seconds: float, unit: str) -> str:
    """`1,180 GPU-h`, `0.45 GPU-h`, `4.1 GPU-min` or `8 GPU-s`."""
    if unit.endswith("h") and seconds < 360:
        kind = unit.removesuffix("h")
        return f"{seconds:.0f} {kind}s" if seconds < 60 else f"{seconds / 60:.1f} {kind}min"
    return f"{seconds / 3600:.2g} {unit}" if seconds < 36_000 else f"{seconds / 3600:,.0f} {unit}"


def lines(plan: Plan) -> list[str]:
    """Below the table: what is missing, the sums, and what the reckoning assumes."""
    told = list(_missing_lines(plan))
    left, evaluations = sum(row.left for row in plan.rows), sum(row.evaluations_left for row in plan.rows)
    total = f"{left:,} runs to train and {evaluations:,} to evaluate"
    timed = [row.seconds for row in plan.rows if row.seconds is not None]
    if sum(timed):
        report = _REPORT * sum(row.cells for row in plan.rows if not row.missing)
        shared = f" with {plan.workers} workers" if plan.workers > 1 else ""
        total += f"; about {duration(sum(timed) / plan.workers + report)} on this machine{shared}, report included"
    if reckoned := [row for row in plan.rows if row.seconds is None]:
        seconds = sum(row.reckoned(plan.throughput) for row in reckoned)
        total += f"; about {_amount(seconds, plan.throughput.unit)} by reckoning"
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
    yield from _wanted("* missing, and how to get it; what needs it is left out:", [row.missing for row in plan.rows])
    yield from _wanted(
        "† completions alone are left out, for what is missing:", [row.unanswerable for row in plan.rows]
    )


def _wanted(heading: str, of_rows: list[list[str]]) -> Iterator[str]:
    wanted: dict[str, list[int]] = {}
    for number, found in enumerate(of_rows, 1):
        for what in found:
            wanted.setdefault(what, []).append(number)
    if wanted:
        yield heading
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
