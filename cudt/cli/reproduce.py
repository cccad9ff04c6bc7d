"""`cudt reproduce`: all experiments of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli.options import DataRoot, Device, RetryFailed
from cudt.cli.terminal import make_console

Scale = Annotated[str, typer.Option(help="smoke, cpu or full, or a YAML file like those in recipes/reproduce.")]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Print the experiments with their estimated cost, run nothing.")]
Workers = Annotated[int, typer.Option(min=1, help="Number of runs trained or evaluated at the same time.")]
Folder = Annotated[Path | None, typer.Option(help="Folder for all results.", show_default="outputs/reproduce-SCALE")]


def reproduce(
    scale: Scale,
    plan: OnlyPlan = False,
    workers: Workers = 1,
    retry_failed: RetryFailed = False,
    device: Device = "auto",
    data_root: DataRoot = None,
    out: Folder = None,
) -> None:
    """Run all experiments of the paper, the cheapest first: sweeps, evaluations, report.

    Experiments whose data or weights are missing are skipped;
    cudt prints how to get them. Re-running the same command resumes.
    """
    from cudt.reproduce import scale as scales

    loaded = scales.load(scale)
    from cudt.reproduce import run_experiments
    from cudt.runs.options import RunOptions

    folder = out or Path("outputs") / f"reproduce-{loaded.name}"
    options = RunOptions(folder, device, data_root, workers, retry_failed)
    if not run_experiments.reproduce(loaded, options, make_console(), only_plan=plan):
        raise typer.Exit(1)
