"""The plan of a reproduction: how far each experiment is, its hours, and what is missing, without
running any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from cudt.reproduce import needs
from cudt.reproduce.evaluation import chosen, is_evaluated, n_evaluations
from cudt.reproduce.scale import Experiment, Reproduction
from cudt.reproduce.stored import ReproduceOptions
from cudt.sweep import command as sweeps
from cudt.sweep import results
from cudt.sweep.worker import SweepOptions
from cudt.utils.text import ranges


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment: its progress, and what it is missing."""

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

    @property
    def is_done(self) -> bool:
        return not self.left and not self.evaluations_left

    @property
    def hours(self) -> float:
        """What the experiment takes in all; 0 if it is done."""
        return 0.0 if self.is_done else self.experiment.listed.hours


def make(reproduction: Reproduction, options: ReproduceOptions) -> list[PlannedExperiment]:
    """What is left of each experiment, and what it is missing, in the order in which they run."""
    return [_planned(experiment, options) for experiment in reproduction.in_order]


def own_options(experiment: Experiment, options: ReproduceOptions) -> SweepOptions:
    """The options of an experiment's sweep, with the experiment's own data root."""
    data_root = experiment.data_root(options.data_root, options.out)
    return SweepOptions(
        options.out, options.device, data_root, options.workers, options.retry_failed, options.url
    )


def _planned(experiment: Experiment, options: ReproduceOptions) -> PlannedExperiment:
    own = own_options(experiment, options)
    cells = sweeps.plan(experiment.sweep, own)
    studies = sweeps.known_studies(experiment.sweep, own)
    is_over = not any(study.n_left for study in studies)
    runs = chosen(experiment, results.wide(experiment.sweep, studies)) if is_over else []
    evaluated = sum(is_evaluated(experiment, own.out / run, own.data_root) for run in runs)
    evaluations = n_evaluations(experiment)
    # Generated data need not exist yet: the command generates them.
    is_generated = experiment.listed.generated
    return PlannedExperiment(
        experiment,
        len(cells),
        sum(state in ("to do", "started") for _, state in cells),
        evaluations,
        evaluations - evaluated,
        missing=[] if is_generated else needs.missing(experiment, own.data_root),
        unanswerable=[] if is_generated else needs.missing_instructions(experiment, own.data_root),
        untestable=needs.missing_other(experiment, own.data_root),
    )


# ---------------------------------------------------------------- printing


def table(plan: list[PlannedExperiment]) -> Table:
    """Each experiment and what it reproduces, in the order in which they run."""
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "experiment", "runs", "evaluated", "hours"):
        right = name != "experiment"
        rows.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for number, row in enumerate(plan, 1):
        marks = "*" * bool(row.missing) + "†" * bool(row.unanswerable) + "‡" * bool(row.untestable)
        rows.add_row(
            str(number),
            Text.assemble(row.experiment.name, "\n", (row.experiment.listed.reproduces, "dim")),
            f"{row.cells - row.left}/{row.cells}",
            f"{row.evaluations - row.evaluations_left}/{row.evaluations}",
            "done" if row.is_done else f"{_amount(row.hours)} {marks}".rstrip(),
        )
    return rows


def lines(plan: list[PlannedExperiment], machine: str) -> list[str]:
    """The lines below the table: what is missing, the totals, and what the hours are."""
    left, evaluations = sum(row.left for row in plan), sum(row.evaluations_left for row in plan)
    total = f"{left:,} runs to train and {evaluations:,} to evaluate; {_amount(sum(row.hours for row in plan))} hours"
    if skipped := sum(row.hours for row in plan if row.missing):
        total += f", {_amount(skipped)} of them for what is skipped"
    return [*_missing_lines(plan), total, f"hours: {machine}"]


def _amount(hours: float) -> str:
    """`1,180`, `5.4` or `0.36`."""
    return f"{hours:.2g}" if hours < 10 else f"{hours:,.0f}"


def _missing_lines(plan: list[PlannedExperiment]) -> Iterator[str]:
    """Each missing item once, with the numbers of the experiments that need it."""
    yield from _needed(
        "* missing; the experiments that need it are skipped:", [row.missing for row in plan]
    )
    yield from _needed(
        "† missing; only the completions are skipped:", [row.unanswerable for row in plan]
    )
    yield from _needed(
        "‡ missing; only evaluations on it are skipped:", [row.untestable for row in plan]
    )


def _needed(heading: str, of_rows: list[list[str]]) -> Iterator[str]:
    needed: dict[str, list[int]] = {}
    for number, items in enumerate(of_rows, 1):
        for item in items:
            needed.setdefault(item, []).append(number)
    if needed:
        yield heading
    for item, numbers in needed.items():
        yield f"  for {ranges(numbers)}: {item}"
