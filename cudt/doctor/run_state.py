"""Whether the status of a run is true."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cudt.doctor.diagnosis import Diagnosis
from cudt.doctor.run_lock import held
from cudt.runs.info import RunInfo, read_info, write_info


def check(run: Path, info: RunInfo) -> Iterator[Diagnosis]:
    """A run that says it is running although nobody trains it, or that has lost its run.json or its weights."""
    weights = list((run / "checkpoints").glob("*.safetensors"))
    if info.status is None and weights:
        yield Diagnosis("problem", f"{run}: run.json is missing", f"restore it, or delete {run} to train again")
    if info.status == "running":
        yield Diagnosis(
            "warning",
            f"{run}: its status is running, but no process is training it",
            f"resume it: `{info.command}`" if info.command else "resume it with the command that started it",
            partial(_interrupt, run),
        )


def _interrupt(run: Path) -> str:
    with held(run):
        if read_info(run).status == "running":
            write_info(run, RunInfo(status="interrupted", reason="the process that trained it ended without a message"))
    return "its status is now interrupted; the command that started it resumes it"
