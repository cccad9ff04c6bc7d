"""What workers do in tests instead of training: they import it by name, and start at once because it is light."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from cudt.config import strict_yaml
from cudt.sweep.workers import Progress, Workers
from cudt.utils.errors import DataWarning, TrainingInterruptedError, TrainingStoppedError, UserError
from cudt.utils.interrupt import StopRequest

#: Where the planted score is highest, and how high.
ALPHA, RATE, HEIGHT = 0.23, 4e-3, 0.9

if multiprocessing.parent_process() is not None:
    # A job is of a class in cudt.sweep.cell, which imports torch: seconds for each worker of each test.
    _light = ModuleType("cudt.sweep.cell")
    vars(_light)["Job"] = type("Job", (), {"__module__": "cudt.sweep.cell"})
    sys.modules.setdefault("cudt.sweep.cell", _light)


def height(alpha: float, rate: float) -> float:
    """A smooth hill over descent.alpha and the logarithm of descent.dual.learning_rate."""
    return HEIGHT - 4 * (alpha - ALPHA) ** 2 - 0.05 * math.log(rate / RATE) ** 2


def outcome(score: float, **facts: Any) -> Any:
    """As cudt.sweep.cell makes it, without importing that."""
    told = {"updates": 6, "best_epoch": 1, "validation_loss": 1 - score, "validation_metric": score}
    return SimpleNamespace(score=score, facts={**told, "feasible": True, "monotone": False, **facts})


def settings_of(job: Any) -> dict[str, Any]:
    return strict_yaml.parse_mapping(job.recipe, "recipe")


def count(job: Any) -> int:
    """Note that a cell was begun; how often it was by now."""
    values = settings_of(job)
    line = f"{values['objective']} {values['descent']['alpha']} {values['seed']}\n"
    job.out.mkdir(parents=True, exist_ok=True)
    with (job.out / "calls").open("a") as file:
        file.write(line)
    return calls(job.out).count(line.strip())


def calls(out: Path) -> list[str]:
    """Objective, α and seed of every cell that was begun, in order."""
    path = out / "calls"
    return path.read_text().splitlines() if path.is_file() else []


# ---------------------------------------------------------------- instead of cudt.sweep.cell:do


def on_the_hill(job: Any, display: Any) -> Any:
    count(job)
    descent = settings_of(job)["descent"]
    return outcome(height(descent["alpha"], descent["dual"]["learning_rate"]))


def fails_at_two_tenths(job: Any, display: Any) -> Any:
    count(job)
    if settings_of(job)["descent"]["alpha"] == 0.2:
        raise UserError("0.2 is not\nto be borne")
    return outcome(0.5)


def fails_the_first_time(job: Any, display: Any) -> Any:
    if count(job) == 1:
        raise TrainingStoppedError("not today")
    return outcome(0.5)


def always_dies_at_two_tenths(job: Any, display: Any) -> Any:
    count(job)
    if settings_of(job)["descent"]["alpha"] == 0.2:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome(0.5)


def dies_the_first_time(job: Any, display: Any) -> Any:
    if count(job) == 1:
        os._exit(3)
    return outcome(0.5)


def interrupts_the_sweep_once(job: Any, display: Any) -> Any:
    """The second cell sends what Ctrl-C sends, and then works on until it is asked to stop."""
    marker = job.out / "interrupted"
    if count(job) and len(calls(job.out)) == 2 and not marker.exists():
        marker.touch()
        with StopRequest() as stop:
            os.kill(os.getppid(), signal.SIGINT)
            _until(lambda: stop.requested)
        if stop.requested:
            raise TrainingInterruptedError("saved")
    return outcome(0.5)


def stopped_from_outside_once(job: Any, display: Any) -> Any:
    """The first cell's worker is terminated by somebody who is not the sweep."""
    if count(job) == 1 and len(calls(job.out)) == 1:
        raise TrainingInterruptedError("saved")
    return outcome(0.5)


# ---------------------------------------------------------------- jobs that are plain values


def obey(job: Any, display: Any) -> Any:
    """Do what a word says."""
    word, *more = job if isinstance(job, tuple) else (job,)
    print(f"was told to {word}", flush=True)
    match word:
        case "fail":
            raise UserError("it cannot be done")
        case "stop":
            raise TrainingStoppedError("the loss is not finite")
        case "stumble":
            raise ZeroDivisionError("by nought")
        case "exit":
            os._exit(7)
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "warn":
            warnings.warn("a clip is left out", DataWarning, stacklevel=1)
            warnings.warn("of a library", FutureWarning, stacklevel=1)
        case "tell":
            view = SimpleNamespace(step=3, steps=9, train_losses={1: 0.7, 2: 0.4}, validation_losses=None)
            display.update(view)
        case "wait":
            return _waited(Path(more[0]))
        case "look":
            environment = {name: os.environ.get(name) for name in ("PLANTED", "OMP_NUM_THREADS")}
            return {**environment, "at import": PLANTED_AT_IMPORT, "group": os.getpgid(0), "process": os.getpid()}
    return word


PLANTED_AT_IMPORT = os.environ.get("PLANTED")


def _waited(folder: Path) -> str:
    """Say that we are at work, and go on until a file says `go`; a signal that it is enough makes us save till then."""
    with StopRequest() as stop:
        (folder / f"at-work-{os.getpid()}").touch()
        _until(lambda: stop.requested or (folder / "go").exists())
        if stop.requested:
            (folder / f"saving-{os.getpid()}").touch()
            _until(lambda: (folder / "go").exists())
            raise TrainingInterruptedError("saved")
    return "undisturbed"


def _until(condition: Any) -> None:
    # Whoever waits must not outlive the test.
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def hold_out_against_ctrl_c(folder: Path) -> None:
    """A sweep in small: it takes a Ctrl-C for itself, and tells what its worker made of it."""
    with StopRequest() as stop, Workers([{}], folder / "logs", "tests.sweep.planted:obey") as workers:
        workers.start("cell", ("wait", folder))
        _until(lambda: stop.requested)
        (folder / "go").touch()
        while workers.is_busy:
            for _, _, message in workers.wait(1.0):
                if not isinstance(message, Progress):
                    print(message)


if __name__ == "__main__":
    hold_out_against_ctrl_c(Path(sys.argv[1]))
