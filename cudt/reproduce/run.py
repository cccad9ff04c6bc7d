"""`cudt reproduce`: train, evaluate and answer what is left of a scale."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from filelock import FileLock
from rich.console import Console

from cudt.evaluation import generate
from cudt.evaluation.evaluate import evaluate_all
from cudt.evaluation.generate import Decoding
from cudt.reproduce import generated
from cudt.reproduce import plan as plans
from cudt.reproduce.plan import Progress
from cudt.reproduce.scale import Scale
from cudt.sweep.command import run_sweeps
from cudt.sweep.worker import SweepOptions
from cudt.utils import device
from cudt.utils.errors import UserError
from cudt.utils.text import track


def reproduce(
    scale: Scale, options: SweepOptions, console: Console, *, only_plan: bool = False
) -> bool:
    """Print the plan and run what is left of it; returns whether everything is done. The same call
    resumes it.
    """
    out = options.out
    if scale.generated:
        options = replace(options, data_root=out / "generated")
    made = plans.make(scale, options)
    plans.show(made, scale.machine, console)
    if only_plan:
        return True
    if scale.needs_gpu and options.device == "auto" and device.choose("auto").type == "cpu":
        raise UserError(
            "this scale needs a GPU and torch finds none; nothing was run. Use a smaller scale "
            "(--scale cpu or smoke), or run it with --device cpu"
        )
    out.mkdir(parents=True, exist_ok=True)
    if scale.generated:
        with FileLock(out / ".generated.lock"):
            generated.make(out / "generated")
    ready = [row.experiment.sweep for row in made if not row.missing]
    if ready:
        run_sweeps(ready, out, options, console)
    trained = plans.make(scale, options)
    failed = [*_evaluate(trained, options, console)]
    for row in trained:
        _complete(row, options, console)
    made = plans.make(scale, options)
    plans.show(made, scale.machine, console)
    for problem in (failed := [*failed, *(one for row in made for one in row.failed)]):
        plans.say(console, f"failed: {problem}")
    return not failed and all(row.is_done for row in made)


def _evaluate(made: list[Progress], options: SweepOptions, console: Console) -> Iterator[str]:
    """Evaluate what is left; yields what failed, and why."""
    left = [one for row in made for one in row.evaluations]
    # Machines that join would otherwise wait for each other at every run.
    random.shuffle(left)
    tracked = partial(track, console=console)
    where = (options.workers, options.device, options.data_root, tracked)
    runs, grids = [run for run, _ in left], [grid for _, grid in left]
    done = evaluate_all(runs, grids, *where, wait=True)
    for number, result in track(done, len(left), "evaluated runs", console):
        if isinstance(result, BaseException):
            yield f"{runs[number].path}: {result}"


def _complete(row: Progress, options: SweepOptions, console: Console) -> None:
    """Let runs answer the instructions that they have not answered."""
    asked, root = row.experiment.completions, options.data_root
    if asked is None or not asked.file(root).is_file():
        return
    tracked = partial(track, console=console)
    for run, gamma in itertools.product(row.runs, asked.gammas):
        how = Decoding(gamma, 0, asked.max_new_tokens, asked.batch_size)
        where = (options.device, root, tracked)
        with run.locked(wait=True):
            generate.generate(run, asked.file(root), how, *where, asked.limit)
