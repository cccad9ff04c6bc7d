"""Sweeps of several machines on a real PostgreSQL: whoever dies or joins, each cell is done
once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from cudt.runs.run import open_run
from cudt.sweep.storage import own_storage
from tests.postgres import PASSWORD
from tests.sweep.machines import Machines, machines, until
from tests.sweep.searches import FIXED, drawn, grid, sweep_of, write_search

ALPHAS = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
CELLS = 24
#: Half of the cells are listed, half are drawn.
ARMS = {
    "grid": grid({"descent.alpha": ALPHAS, "seed": [0, 1]}),
    "drawn": drawn("random", 12),
}


@pytest.fixture
def sweep(tmp_path) -> Any:
    return sweep_of(tmp_path, arms=ARMS)


@pytest.fixture(autouse=True)
def _fast_heartbeats(monkeypatch) -> None:
    monkeypatch.setenv("CUDT_HEARTBEAT", "1")


def outcome(made: Machines) -> list[dict[str, Any]]:
    """Every trial with its settings, score and run, without what depends on the clock."""
    return made.table().drop(columns=["seconds", "deaths"]).astype(str).to_dict("records")


def one_worker(sweep: Any, folder: Any) -> list[dict[str, Any]]:
    """What one worker makes of the same sweep, on SQLite."""
    folder.mkdir()
    with machines(sweep, own_storage(folder), folder, pace=0.0) as made:
        made.begin()
        made.join("alone")
        assert made.wait() == {"alone": 0}
        return outcome(made)


@pytest.mark.slow
def test_two_of_four_machines_die_one_joins_late_the_database_restarts_and_each_cell_is_done_once(
    sweep, postgres_server, postgres_url, tmp_path
):
    with machines(sweep, postgres_url, tmp_path / "four") as made:
        made.begin()
        for name in ("a", "b", "c"):
            made.join(name)
        made.kill("b")
        made.join("d")
        until(lambda: len(made.notes("ends")) >= 8)
        postgres_server.restart("immediate", away=0.5)
        until(lambda: any(one.machine == "d" for one in made.notes("ends")))
        made.kill("c")
        assert made.wait() == {"a": 0, "d": 0}
        begun, ended = made.notes("begins"), made.notes("ends")
        table = made.table()
        assert outcome(made) == one_worker(sweep, tmp_path / "one")
    assert table["state"].tolist() == ["finished"] * CELLS
    assert table["run"].nunique() == CELLS
    # Only the cells of the two that died were begun twice, and no cell was finished twice.
    assert sorted(one.cell for one in ended) == sorted({one.cell for one in begun})
    assert (len(begun), len(ended), table["deaths"].sum()) == (CELLS + 2, CELLS, 2)


# ---------------------------------------------------------------- joining what is not there


def test_a_wrong_password_is_reported_and_none_is_printed(command, postgres_server, postgres_url):
    code, output, error = command(
        "sweep", "--join", "--storage", postgres_url.replace(PASSWORD, "swordfish")
    )
    assert (code, output) == (2, "")
    assert 'password authentication failed for user "cudt"' in error
    assert "swordfish" not in error


# ---------------------------------------------------------------- real trainings, by the command
# line


class Computer:
    """A pretended computer on which `cudt sweep` is running, with its own host name, home and
    folder of runs."""

    def __init__(self, name: str, folder: Path, *arguments: str | Path) -> None:
        self.home = folder / name
        self.home.mkdir()
        # Read by every Python process at its start, those of workers too.
        (self.home / "sitecustomize.py").write_text(
            f"import socket\nsocket.gethostname = lambda: {name!r}\n"
        )
        path = os.pathsep.join([str(self.home), str(Path(__file__).parents[2])])
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
        }
        command = [
            sys.executable,
            "-m",
            "cudt",
            "sweep",
            *map(str, arguments),
            "--out",
            "out",
            "--device",
            "cpu",
        ]
        with (self.home / "printed").open("wb") as printed:
            self.process = subprocess.Popen(
                command, cwd=self.home, env=environment, stdout=printed, stderr=subprocess.STDOUT
            )

    @property
    def printed(self) -> str:
        return (self.home / "printed").read_text()

    def runs(self, status: str) -> dict[str, Path]:
        """Its run folders with a status, by their names."""
        found = [path.parent for path in self.home.glob("out/reviews-ut/*/run.json")]
        return {path.name: path for path in found if open_run(path).info().status == status}

    def kill(self) -> None:
        """Kill the command and its workers while they train."""
        until(lambda: self.runs("running"), seconds=400)
        for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


FILES = [
    "history.csv",
    "layers.csv",
    "validation.csv",
    "recipe.yaml",
    "checkpoints/best.safetensors",
]


def contents(runs: dict[str, Path]) -> dict[str, dict[str, bytes]]:
    return {
        name: {file: (path / file).read_bytes() for file in FILES} for name, path in runs.items()
    }


@pytest.mark.slow
def test_real_runs_of_four_computers_equal_those_of_one_though_two_die_and_the_database_restarts(
    postgres_server, postgres_url, tmp_path
):
    score = {"measure": "grid", "direction": "maximize", "gammas": [0, 1]}
    # A checkpoint after every update: whoever is killed has begun one, and another begins from
    # scratch elsewhere.
    fixed = {**FIXED, "task.train": 640, "training.epochs": 10, "training.checkpoint_every": 1}
    path = write_search(tmp_path, arms=ARMS, score=score, fixed=fixed)
    started: dict[str, Computer] = {}

    def start(name: str, *arguments: str | Path) -> Computer:
        started[name] = Computer(name, tmp_path, *arguments)
        return started[name]

    try:
        join = ("--join", "--storage", postgres_url)
        first = start("a", "--search", path, "--storage", postgres_url)
        until(
            lambda: "sweep mine of reviews-ut" in first.printed and first.runs("running"),
            seconds=400,
        )
        start("b", *join)
        start("c", *join)
        started["b"].kill()
        start("d", *join)
        started["c"].kill()
        until(lambda: started["d"].runs("running"), seconds=400)
        postgres_server.restart("immediate", away=2)
        for name in ("a", "d"):
            assert started[name].process.wait(timeout=900) == 0, started[name].printed
        finished = [started[name].runs("finished") for name in started]
        assert start("alone", "--search", path).process.wait(timeout=900) == 0
    finally:
        for one in started.values():
            one.process.kill()
    # Whoever died may have finished runs before; no run was finished on two computers.
    assert len({name for runs in finished for name in runs}) == sum(map(len, finished)) == CELLS
    together = {name: run for runs in finished for name, run in runs.items()}
    assert contents(together) == contents(started["alone"].runs("finished"))
    tables = [
        pd.read_csv(next(started[name].home.glob("out/sweeps/*/*/trials_wide.csv")))
        for name in ("a", "alone")
    ]
    assert tables[0]["deaths"].sum() == 2
    clock = ["seconds", "deaths"]
    pd.testing.assert_frame_equal(tables[0].drop(columns=clock), tables[1].drop(columns=clock))
