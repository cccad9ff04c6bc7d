"""Whatever is killed, every cell of a sweep ends once in its table, with what one worker would have
found.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from optuna.trial import TrialState

from cudt.sweep import results
from cudt.sweep.search import Sweep
from cudt.sweep.studies import open_storage, studies_of
from cudt.sweep.worker import main
from tests.postgres import postgres
from tests.processes import ending, in_child
from tests.sweeps import ERM, begun, grid, notes, seeds, slowly, sweep_of

LIMIT = 120.0


class Team:
    """Workers in processes of their own, which share a storage and nothing else. Their cells take
    `pace` seconds.
    """

    def __init__(self, sweep: Sweep, out: Path, pace: float, url: str | None = None) -> None:
        out.mkdir()
        self.pace, self.running = pace, dict[int, Path]()
        studies, self.options = begun(sweep, out, url)
        self.study, self.url = studies[0].study.study_name, self.options.storage or ""
        for study in studies:
            study.study._storage.remove_session()

    def join(self) -> int:
        """Start a worker, with a folder of runs of its own; returns its process."""
        out = self.options.out / f"machine-{len([*self.options.out.glob('machine-*')])}"
        out.mkdir()
        (out / "pace").write_text(str(self.pace))
        process = in_child(partial(signal.alarm, int(LIMIT)), partial(self._work, out))
        self.running[process] = out
        return process

    def _work(self, out: Path) -> None:
        os._exit(main(([self.study], replace(self.options, out=out))))

    def stop(self, process: int, number: signal.Signals) -> int:
        """Send a signal to a worker in the middle of a cell; returns how it ended."""
        out = self.running.pop(process)
        until(lambda: notes(out)[-1:] == ["begins"])
        # Its first heartbeat is stored meanwhile.
        time.sleep(0.5)
        os.kill(process, number)
        return ending(process)

    def wait(self) -> list[int]:
        """The exit codes of the workers that are left."""
        return [ending(self.running.popitem()[0]) for _ in list(self.running)]

    def notes(self) -> list[str]:
        every = (notes(out) for out in self.options.out.glob("machine-*"))
        return [line for lines in every for line in lines]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def hire(tmp_path, monkeypatch) -> Iterator[Callable[..., Team]]:
    """Begin a sweep whose cells take some seconds; no worker outlives the test."""
    hired: list[Team] = []
    monkeypatch.setattr("cudt.sweep.worker.run_cell", slowly)
    monkeypatch.setattr("cudt.sweep.studies.HEARTBEAT", 1)

    def begin(sweep: Sweep, pace: float, url: str | None = None) -> Team:
        hired.append(Team(sweep, tmp_path / f"team-{len(hired)}", pace, url))
        return hired[-1]

    yield begin
    for process in (one for team in hired for one in team.running):
        os.kill(process, signal.SIGKILL)
        ending(process)


def alone(hire: Callable[..., Team], sweep: Sweep) -> Team:
    """What one worker finds that nothing disturbs."""
    team = hire(sweep, 0.0)
    team.join()
    assert team.wait() == [0]
    return team


def table(sweep: Sweep, url: str) -> pd.DataFrame:
    """The sweep's trials, without how long they were tried."""
    found = results.wide(sweep, studies_of(sweep, open_storage(url)))
    return found.drop(columns=["seconds"])


def two_arms(folder: Path, n: int) -> Sweep:
    alphas = [round(0.02 * index, 2) for index in range(1, n + 1)]
    erm = seeds(n, fixed=ERM)
    return sweep_of(folder, arms={"constrained": grid({"descent.alpha": alphas}), "erm": erm})


def test_killed_and_interrupted_workers_lose_nothing(hire, tmp_path):
    sweep = two_arms(tmp_path, 4)
    single, team = alone(hire, sweep), hire(sweep, 1.5)
    first, second, _ = [team.join() for _ in range(3)]
    assert team.stop(first, signal.SIGKILL) == -signal.SIGKILL
    assert team.stop(second, signal.SIGTERM) == 128 + signal.SIGTERM
    team.join()
    assert team.wait() == [0, 0]
    one, many = table(sweep, single.url), table(sweep, team.url)
    assert many["state"].tolist() == ["finished"] * 8
    pd.testing.assert_frame_equal(one, many)
    said = team.notes()
    assert said.count("begins") == 10
    assert sorted(line for line in said if line != "begins") == sorted(
        line for line in single.notes() if line != "begins"
    )


def test_a_cell_that_kills_its_workers_fails(tmp_path):
    sweep = sweep_of(tmp_path, arms={"erm": seeds(1, fixed=ERM)})
    (study,), _ = begun(sweep, tmp_path / "out")
    for _ in range(6):
        study.enqueue()
        assert study.n_left == 1
        trial = study.study.ask()
        study.begin(trial)
        # As Optuna does with a trial whose heartbeat is missed.
        study.study.tell(trial, state=TrialState.FAIL)
    assert study.n_left == 0
    (row,) = results.wide(sweep, [study]).to_dict("records")
    assert (row["state"], row["reason"]) == ("failed", "its workers died; see logs/")


@pytest.mark.slow
def test_postgresql_with_kills_a_late_worker_and_a_crash_of_the_server(hire, tmp_path):
    sweep = two_arms(tmp_path, 12)
    single = alone(hire, sweep)
    with postgres() as server:
        team = hire(sweep, 1.5, server.url)
        first, second, _, _ = [team.join() for _ in range(4)]
        team.stop(first, signal.SIGKILL)
        team.join()
        until(lambda: team.notes().count("begins") >= 10)
        server.crash()
        time.sleep(3)
        server.start()
        team.stop(second, signal.SIGKILL)
        assert team.wait() == [0, 0, 0]
        many = table(sweep, server.url)
    assert many["state"].tolist() == ["finished"] * 24, many["reason"].dropna().tolist()
    pd.testing.assert_frame_equal(table(sweep, single.url), many)
