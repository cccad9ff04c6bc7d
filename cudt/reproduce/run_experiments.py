"""Run the experiments of a scale together with all who joined, and write one report about all of
them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console

from cudt import report
from cudt.evaluation import generate
from cudt.evaluation.evaluate import evaluate_all
from cudt.report import Report
from cudt.reproduce import evaluation, generated, needs, stored
from cudt.reproduce import outcome as outcomes
from cudt.reproduce import plan as plans
from cudt.reproduce.evaluation import RunEvaluation
from cudt.reproduce.outcome import ExperimentOutcome
from cudt.reproduce.scale import GENERATED, Experiment, Reproduction
from cudt.reproduce.stored import ReproduceOptions
from cudt.runs.run import open_run
from cudt.sweep.command import run_sweep
from cudt.sweep.results import Results
from cudt.sweep.storage import open_storage
from cudt.sweep.worker import SweepOptions
from cudt.utils import device
from cudt.utils.errors import TrainingInterruptedError, UserError, signal_of
from cudt.utils.progress import track


def reproduce(
    reproduction: Reproduction,
    options: ReproduceOptions,
    console: Console,
    *,
    only_plan: bool = False,
) -> bool:
    """Print the plan, run it and write the report; returns whether everything was done. The same
    call resumes it.
    """
    refusal = _refusal(reproduction, options)
    try:
        _make_data(reproduction, options, only_plan or bool(refusal))
        if only_plan or not options.join:
            plan = plans.make(reproduction, options)
            console.print(plans.table(plan))
            _print(console, "\n".join(plans.lines(plan, reproduction.scale.machine)))
        if only_plan:
            return True
        if refusal:
            raise UserError(refusal)
        return _run(reproduction, options, console)
    except KeyboardInterrupt as error:
        raise _interrupted(options, signal_of(error)) from None


def _refusal(reproduction: Reproduction, options: ReproduceOptions) -> str:
    """Why the scale is refused on this machine (it would take years without a GPU); empty if it is
    not.
    """
    if (
        not reproduction.scale.needs_gpu
        or options.device == "cpu"
        or device.choose(options.device).type != "cpu"
    ):
        return ""
    return (
        f"scale {reproduction.name} needs a GPU and torch finds none; nothing was run. Use a "
        "machine with one, "
        "or a smaller scale (--scale cpu or smoke; make reproduce-paper SCALE=cpu or smoke), or "
        "run it on "
        "the CPU anyway with --device cpu (make: DEVICE=cpu)"
    )


def _make_data(reproduction: Reproduction, options: ReproduceOptions, only_plan: bool) -> None:
    """Generate the data of generated experiments; `--plan` writes nothing."""
    if not only_plan and any(
        experiment.listed.generated for experiment in reproduction.experiments
    ):
        options.out.mkdir(parents=True, exist_ok=True)
        # Several commands may begin at the same time.
        with FileLock(options.out / f".{GENERATED}.lock"):
            generated.make(options.out / GENERATED)


def _interrupted(options: ReproduceOptions, signal_number: int) -> TrainingInterruptedError:
    return TrainingInterruptedError(
        f"{options.out}: interrupted; run the same command to resume", signal_number
    )


def _run(reproduction: Reproduction, options: ReproduceOptions, console: Console) -> bool:
    """Run what is left and write the report; returns whether everything was done."""
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.join:
        stored.begin(reproduction, open_storage(options.url))
    found = [_experiment(one, options, console) for one in reproduction.in_order]
    written = write_report(options.out, console, only_if_old=options.join)
    _print(console, "\n".join(outcomes.summary(found)))
    if written is not None:
        if written.verdict:
            console.print(written.verdict, highlight=False)
        _print(console, f"report: {written.page}\ntable:  {written.table_path}")
    return all(outcome.is_done for outcome in found)


def _experiment(
    experiment: Experiment, options: ReproduceOptions, console: Console
) -> ExperimentOutcome:
    """Train, evaluate and answer what is left of an experiment."""
    own, made = plans.own_options(experiment, options), ExperimentOutcome(experiment)
    made.skipped = needs.missing(experiment, own.data_root)
    if made.skipped:
        return made
    _print(console, experiment.name)
    try:
        swept = run_sweep(experiment.sweep, own, console)
    except UserError as error:
        made.skipped = [str(error)]
        return made
    made.runs = swept.count("finished")
    if n_failed := swept.count("failed"):
        table = swept.folder / "trials_wide.csv"
        made.failed.append(
            f"{n_failed} runs: see the reasons in {table}, retry them with --retry-failed"
        )
    if swept.left:
        made.skipped.append(f"{swept.left} runs were not trained")
    _evaluate(made, evaluation.chosen(experiment, swept.trials), own, console)
    _complete(made, swept, own, console)
    others = [needs.missing_instructions, needs.missing_other]
    made.skipped += [one for lacks in others for one in lacks(experiment, own.data_root)]
    return made


def _evaluate(
    made: ExperimentOutcome, paths: Sequence[str], own: SweepOptions, console: Console
) -> None:
    """Evaluate runs whose tables are not complete, on their own test data and on others."""
    asked: list[RunEvaluation] = []
    failed: dict[Path, str] = {}
    for path in paths:
        try:
            asked += evaluation.evaluations_of(made.experiment, own.out / path, own.data_root)
        except UserError as error:
            failed[own.out / path] = str(error)
    left = [one for one in asked if not one.is_done]
    for n_samples in sorted({one.n_samples for one in left}, reverse=True):
        mine = [one for one in left if one.n_samples == n_samples]
        runs, grids = [one.run for one in mine], [one.grid for one in mine]
        where = (own.workers, own.device, own.data_root, lambda items, *_: items)
        how: Any = {"n_samples": n_samples, "with_exits": mine[0].with_exits}
        done = evaluate_all(runs, grids, *where, **how)
        for number, result in track(done, len(runs), "evaluated runs", console):
            if isinstance(result, BaseException):
                failed[runs[number].path] = str(result)
    made.failed += [f"{path}: {reason}" for path, reason in failed.items()]
    made.evaluated = len(paths) - len(failed)


def _complete(made: ExperimentOutcome, swept: Results, own: SweepOptions, console: Console) -> None:
    """Let runs answer the instructions that they have not answered."""
    experiment = made.experiment
    asked = experiment.listed.completions
    paths = evaluation.chosen(experiment, swept.trials, asked.runs) if asked else []
    for request in evaluation.requests(experiment, own.data_root):
        for path in paths:
            run = open_run(own.out / path)
            generate.check(run)
            with run.locked(wait=True):
                tracked = partial(track, console=console)
                generate.generate(run, request, own.device, own.data_root, tracked)


def write_report(out: Path, console: Console, *, only_if_old: bool = False) -> Report | None:
    """Write the report about every run below the out folder; None if there is nothing to report.

    `only_if_old` leaves a report alone that has everything in it. Commands that end together write
    one after another.
    """
    lock = out / ".report.lock"
    try:
        with FileLock(lock):
            if only_if_old and _is_new(out):
                return None
            lock.touch()
            made = report.write([out], out / "report")
            # The page's time is when its runs were read: what ended while it was written is not in
            # it.
            began = lock.stat().st_mtime_ns
            os.utime(made.page, ns=(began, began))
    except UserError as error:
        _print(console, f"no report was written: {error}")
        return None
    for warning in made.warnings:
        _print(console, f"warning: {warning}", style="yellow")
    return made


def _is_new(out: Path) -> bool:
    """Whether no table of a run is newer than the report."""
    page = out / "report" / "index.html"
    runs = [path.parent for path in out.glob("*/*/run.json")]
    names = ("run.json", "ood.csv", "exits.csv", "on-*/ood.csv", "completions/*.json")
    tables = [path for run in runs for name in names for path in run.glob(name)]
    # Every command that ends writes completions side by side.
    last = max(
        (path.stat().st_mtime_ns for path in tables if "against" not in path.name), default=0
    )
    return page.is_file() and page.stat().st_mtime_ns > last


def _print(console: Console, text: str, style: str = "") -> None:
    """Print text as it is, without coloured numbers or wrapped paths."""
    console.print(text, style=style, soft_wrap=True, highlight=False)
