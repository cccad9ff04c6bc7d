"""`cudt reproduce`: all experiments of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudt.cli.options import DataRoot, Device, RetryFailed, Storage, refuse_with_join
from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.reproduce.scale import Reproduction

Scale = Annotated[
    str | None,
    typer.Option(
        help="smoke, cpu or full, or a YAML file like those in recipes/reproduce. With --join: its name."
    ),
]
Join = Annotated[
    bool,
    typer.Option(
        "--join", help="Take part in a reproduction that was begun elsewhere; needs --storage."
    ),
]
OnlyPlan = Annotated[
    bool, typer.Option("--plan", help="Print the experiments with their hours, run nothing.")
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
    and elsewhere with the same --storage it adds workers.
    """
    if join:
        refuse_with_join(retry_failed=retry_failed)
    loaded = _joined(scale, storage) if join else _loaded(scale)
    from cudt.reproduce import run_experiments
    from cudt.reproduce.stored import ReproduceOptions

    folder = out or Path("outputs") / f"reproduce-{loaded.name}"
    options = ReproduceOptions(folder, device, data_root, workers, retry_failed, storage, join)
    console = make_console()
    if not run_experiments.reproduce(loaded, options, console, only_plan=plan):
        raise typer.Exit(1)


def _loaded(scale: str | None) -> Reproduction:
    from cudt.reproduce import scale as scales

    if scale is None:
        raise UserError(
            "--scale: missing; name a scale, or take part in a running reproduction with --join"
        )
    return scales.load(scale)


def _joined(scale: str | None, storage: str | None) -> Reproduction:
    if storage is None:
        raise UserError(
            "--join: needs --storage (or CUDT_STORAGE), the URL of the database that has the "
            "reproduction"
        )
    from cudt.reproduce import stored

    return stored.find(storage, scale)
