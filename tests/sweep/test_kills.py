"""A sweep gives every cell once and the same results, whatever is killed, and whenever."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pandas as pd
import pytest
from filelock import FileLock

from cudt.runs.run import open_run
from cudt.sweep import definition
from tests.sweep.searches import FIXED, grid, swept, write_search

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").is_file(), reason="finds workers in /proc"
)

CELLS = 12
SEARCH = {
    "score": {"measure": "grid", "direction": "maximize", "gammas": [0, 1]},
    # A checkpoint after every update, so that whoever is killed has begun one.
    "fixed": {**FIXED, "task.train": 320, "training.checkpoint_every": 1},
    "arms": {"constrained": grid({"descent.alpha": [0.05, 0.1, 0.2, 0.3], "seed": [0, 1, 2]})},
}


# ---------------------------------------------------------------- a sweep, and those who kill it


@contextmanager
def sweeping(search: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`cudt sweep` with two workers; it does not outlive the test."""
    command = [
        sys.executable,
        "-m",
        "cudt",
        "sweep",
        "--search",
        search,
        "--workers",
        "2",
        "--out",
        out,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TERM": "dumb"}
    with (out.parent / "printed").open("ab") as printed:
        process = subprocess.Popen(command, env=environment, stdout=printed, stderr=printed)  # type: ignore[arg-type]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    return [child for child in _children(process.pid) if b"spawn_main" in _read(child, "cmdline")]


def _children(parent: int) -> list[int]:
    numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    # After the name, which may hold anything, come the state and the parent.
    return [
        one
        for one in numbers
        if _read(one, "stat").rpartition(b")")[2].split()[1:2] == [b"%d" % parent]
    ]


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def is_alive(process: int) -> bool:
    return _read(process, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def kill(*processes: int) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def work_since(out: Path, moment: float) -> bool:
    """Whether some cell has saved a checkpoint since then."""
    return any(
        path.stat().st_mtime > moment
        for path in out.glob("reviews-ut/*/checkpoints/checkpoint-*.json")
    )


def finished(out: Path) -> int:
    # Files are always whole, but a folder comes before its run.json.
    found = out.glob("reviews-ut/*/run.json")
    return sum(json.loads(path.read_text())["status"] == "finished" for path in found)


def amid_work(
    out: Path, process: subprocess.Popen[bytes], rng: random.Random, since: float
) -> list[int]:
    """Wait for a random moment at which cells are under way; the workers of that moment."""
    until(lambda: work_since(out, since) or process.poll() is not None)
    moment, done = time.time() + rng.uniform(0, 0.8), finished(out)
    # However fast the machine is, there is something left for the next time.
    until(lambda: time.time() > moment or finished(out) > done + 1)
    workers = workers_of(process)
    assert process.poll() is None
    assert len(workers) == 2
    assert finished(out) < CELLS
    return workers


# ---------------------------------------------------------------- what comes out


def outcome(out: Path) -> dict[str, bytes]:
    """Every file that a sweep is for, without what depends on the clock."""
    (folder,) = out.glob("sweeps/reviews-ut/*")
    trials = pd.read_csv(folder / "trials_wide.csv").drop(columns=["seconds", "deaths"])
    names = [
        "history.csv",
        "layers.csv",
        "validation.csv",
        "recipe.yaml",
        "checkpoints/best.safetensors",
    ]
    found = {path for name in names for path in out.glob(f"reviews-ut/*/{name}")}
    files = {
        str(path.relative_to(out)): path.read_bytes() for path in [*found, folder / "best.yaml"]
    }
    return {"trials": trials.to_csv().encode(), **files}


def check_every_cell_is_there_once(out: Path) -> None:
    (folder,) = out.glob("sweeps/reviews-ut/*")
    trials = pd.read_csv(folder / "trials_wide.csv")
    assert trials["state"].tolist() == ["finished"] * CELLS
    assert trials[["descent.alpha", "seed"]].drop_duplicates().shape[0] == CELLS
    assert sorted(trials["run"]) == sorted(
        path.relative_to(out).as_posix() for path in out.glob("reviews-ut/*")
    )
    assert trials["run"].nunique() == CELLS
    assert {open_run(out / run).info().status for run in trials["run"]} == {"finished"}


def deaths(out: Path) -> int:
    (table,) = out.glob("sweeps/reviews-ut/*/trials_wide.csv")
    return int(pd.read_csv(table)["deaths"].sum())


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> dict[str, bytes]:
    """The same sweep with one worker that nobody kills; once for all processes of pytest."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out = shared / "undisturbed"
    with FileLock(shared / "undisturbed.lock"):
        if not out.exists():
            sweep = definition.load(str(write_search(base, **SEARCH)))
            with pytest.MonkeyPatch.context() as patch:
                # As those have it that are killed: sums over several threads end in other digits.
                patch.setenv("OMP_NUM_THREADS", "1")
                swept(sweep, out, "cudt.sweep.cell:run_cell")
    assert deaths(out) == 0
    return outcome(out)


@pytest.fixture(autouse=True)
def fast_heartbeats(monkeypatch) -> None:
    """Whoever is killed between starting a trial and saying who has it is found by missing
    heartbeats alone."""
    monkeypatch.setenv("CUDT_HEARTBEAT", "1")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def search_file(tmp_path) -> Path:
    return write_search(tmp_path, **SEARCH)


# ---------------------------------------------------------------- kills of processes


@pytest.mark.slow
def test_cells_are_done_once_and_the_same_though_both_workers_are_killed_three_times(
    search_file, out, undisturbed
):
    rng, killed = random.Random(0), 0.0
    with sweeping(search_file, out) as process:
        for _ in range(3):
            workers = amid_work(out, process, rng, since=killed)
            killed = time.time()
            kill(*workers)
        assert process.wait(timeout=120) == 0
    check_every_cell_is_there_once(out)
    # Each time, at least one of the two had a cell; the sweep lived on, so it drew no trial twice.
    assert 3 <= deaths(out) <= 6
    (database,) = out.glob("sweeps/reviews-ut/*/study.db")
    (study,) = optuna.get_all_study_names(f"sqlite:///{database}")
    assert len(optuna.load_study(study_name=study, storage=f"sqlite:///{database}").trials) == CELLS
    assert outcome(out) == undisturbed
