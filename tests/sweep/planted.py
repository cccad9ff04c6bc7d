"""Cell functions that replace training in tests: workers import them by name, and they are
light."""

from __future__ import annotations

import errno
import math
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from cudt.config import yaml
from cudt.sweep.messages import CellProgress, CellResult
from cudt.utils.errors import StopRequest, TrainingInterruptedError, TrainingPrunedError, UserError
from tests.utils.process_jobs import until

#: Where the planted score is highest, and how high.
ALPHA, RATE, HEIGHT = 0.23, 4e-3, 0.9


def height(alpha: float, rate: float) -> float:
    """A smooth hill over descent.alpha and the logarithm of descent.dual.learning_rate."""
    return HEIGHT - 4 * (alpha - ALPHA) ** 2 - 0.05 * math.log(rate / RATE) ** 2


def result(score: float, **facts: Any) -> CellResult:
    """The result of a cell with this score."""
    usual = {
        "updates": 6,
        "best_epoch": 1,
        "validation_loss": 1 - score,
        "validation_metric": score,
    }
    return CellResult(score, {**usual, "feasible": True, "monotone": False, **facts})


def settings_of(job: Any) -> dict[str, Any]:
    return yaml.parse_mapping(job.recipe, "recipe")


def count(job: Any) -> int:
    """Record that a cell was started; returns how often it was by now."""
    values = settings_of(job)
    line = f"{values['objective']} {values['descent']['alpha']} {values['seed']}\n"
    job.out.mkdir(parents=True, exist_ok=True)
    with (job.out / "calls").open("a") as file:
        file.write(line)
    return calls(job.out).count(line.strip())


def calls(out: Path) -> list[str]:
    """Objective, α and seed of every cell that was started, in order."""
    path = out / "calls"
    return path.read_text().splitlines() if path.is_file() else []


# ---------------------------------------------------------------- instead of
# cudt.sweep.cell:run_cell


def on_the_hill(job: Any, report: Any) -> Any:
    count(job)
    descent = settings_of(job)["descent"]
    return result(height(descent["alpha"], descent["dual"]["learning_rate"]))


def fails_at_two_tenths(job: Any, report: Any) -> Any:
    count(job)
    if settings_of(job)["descent"]["alpha"] == 0.2:
        raise UserError("0.2 is\nnot allowed")
    return result(0.5)


def always_dies_at_two_tenths(job: Any, report: Any) -> Any:
    count(job)
    if settings_of(job)["descent"]["alpha"] == 0.2:
        os.kill(os.getpid(), signal.SIGKILL)
    return result(0.5)


def dies_the_first_time(job: Any, report: Any) -> Any:
    if count(job) == 1:
        os._exit(3)
    return result(0.5)


def finds_the_disk_full(job: Any, report: Any) -> Any:
    """A cell finds no space for its files, unless the file `space` exists."""
    if settings_of(job)["descent"]["alpha"] == 0.2 and not (job.out / "space").exists():
        report(CellProgress(3, 6, 0.5))
        raise OSError(errno.ENOSPC, "No space left on device", str(job.out / "run.json"))
    count(job)
    return result(0.5)


def interrupts_the_sweep_once(job: Any, report: Any) -> Any:
    """The second cell sends the sweep a Ctrl-C, then runs until it is asked to stop."""
    marker = job.out / "interrupted"
    if count(job) and len(calls(job.out)) == 2 and not marker.exists():
        marker.touch()
        with StopRequest() as stop:
            os.kill(os.getppid(), signal.SIGINT)
            until(lambda: stop.requested)
        if stop.requested:
            raise TrainingInterruptedError("saved")
    return result(0.5)


# ---------------------------------------------------------------- on pretended machines


#: Environment variables: the file in which cells note what they do, and how many seconds they take.
NOTES, PACE = "CUDT_TEST_NOTES", "CUDT_TEST_PACE"


def paced(job: Any, report: Any) -> Any:
    """Takes some time, and notes when it begins and ends."""
    values = settings_of(job)
    cell = f"{values['descent']['alpha']} {values['seed']}"
    note("begins", cell)
    end = time.monotonic() + float(os.environ[PACE])
    while time.monotonic() < end:
        time.sleep(0.05)
        report(CellProgress(1, 2, None))
    note("ends", cell)
    descent = values["descent"]
    return result(height(descent["alpha"], descent["dual"]["learning_rate"]))


#: By α, the validation metric after each epoch; the last epoch is the score.
CURVES = {
    0.05: [0.5, 0.6, 0.7, 0.8],
    0.1: [0.4, 0.5, 0.6, 0.7],
    0.15: [0.1, 0.2, 0.3, 0.4],
    0.2: [0.4, 0.5, 0.6, 0.6],
    # It would be the best of all.
    0.25: [0.4, 0.45, 0.9, 0.99],
    0.3: [0.39, 0.9, 0.9, 0.9],
    0.35: [0.55, 0.1, 0.1, 0.9],
    0.4: [0.9, 0.9, 0.9, 0.85],
}


def curved(job: Any, report: Any) -> Any:
    """Follows its curve, unless the referee ends it."""
    values = settings_of(job)
    alpha, cell = values["descent"]["alpha"], f"{values['descent']['alpha']} {values['seed']}"
    curve = dict(enumerate(CURVES[alpha], 1))
    note("begins", cell)
    for epoch in curve:
        time.sleep(float(os.environ[PACE]) / len(curve))
        so_far = {one: value for one, value in curve.items() if one <= epoch}
        if job.referee.is_behind(so_far) and epoch < len(curve):
            note("ends", cell)
            raise TrainingPrunedError(f"after epoch {epoch}")
    note("ends", cell)
    return result(curve[len(curve)])


def note(word: str, cell: str) -> None:
    """Note what a cell does on this machine; a line is written at once, so that many processes
    can."""
    with Path(os.environ[NOTES]).open("ab", buffering=0) as file:
        file.write(f"{word}\t{socket.gethostname()}\t{cell}\t{time.time()}\n".encode())
