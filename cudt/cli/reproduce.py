"""`cudt reproduce`: all experiments of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli.options import (
    DataRoot,
    Device,
    RetryFailed,
    Storage,
    refuse_with_join,
    split_list,
)
from cudt.cli.report import write_report
from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError

Scale = Annotated[
    str | None,
    typer.Option(help="smoke, cpu or full, or a YAML file like those in recipes/reproduce."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Run only the experiments with these names, for example figure-1 (see --plan).",
        show_default=False,
    ),
]
Join = Annotated[
    bool,
    typer.Option(
        "--join",
        help="Take part in what was begun in the folder --out elsewhere; needs --storage, no --scale.",
    ),
]
OnlyPlan = Annotated[
    bool,
    typer.Option(
        "--plan", help="Print runs, hours, what is missing and how to get it; run nothing."
    ),
]
Workers = Annotated[
    int, typer.Option(min=1, help="Number of runs trained or evaluated at the same time.")
]
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder for all results.", show_default="outputs/reproduce-SCALE"),
]


def reproduce(
    scale: Scale = None,
    only: Only = None,
    join: Join = False,
    plan: OnlyPlan = False,
    workers: Workers = 1,
    retry_failed: RetryFailed = False,
    storage: Storage = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    out: Folder = None,
) -> None:
    """Run all experiments of the paper, the cheapest first: sweeps, evaluations, report.

    Experiments whose data or weights are missing are skipped;
    cudt prints how to get them. Re-running the same command resumes,
    and elsewhere with the same --storage and --out it adds workers.
    """
    from cudt.config import recipe as recipes
    from cudt.reproduce import run as reproduction
    from cudt.reproduce import scale as scales
    from cudt.sweep.worker import SweepOptions

    if join:
        refuse_with_join(scale=scale, only=only, retry_failed=retry_failed)
        if storage is None or out is None:
            raise UserError("--join: needs --storage and --out of the command that began")
        folder, loaded = out, scales.begun(out)
    elif scale is None:
        raise UserError("--scale: missing; name a scale, or take part in another with --join")
    else:
        folder = out or Path("outputs") / f"reproduce-{recipes.locate(scale, 'scale').stem}"
        loaded = scales.load(scale, split_list(only))
        if not plan:
            scales.save(folder, scale, split_list(only))
    options = SweepOptions(folder, device, data_root, workers, retry_failed, storage, join)
    console = make_console()
    is_done = reproduction.reproduce(loaded, options, console, only_plan=plan)
    if not plan and not join:
        write_report(console, [folder], folder / "report")
    if not is_done:
        raise typer.Exit(1)
