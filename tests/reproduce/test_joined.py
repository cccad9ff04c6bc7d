"""Several commands that share one reproduction: joining late, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudt.reproduce import scale, stored
from cudt.reproduce.queues import ExperimentQueues
from cudt.reproduce.scale import Reproduction
from cudt.reproduce.stored import ReproduceOptions
from cudt.runs.run import find_runs
from cudt.sweep.storage import open_storage
from cudt.utils.errors import UserError
from tests.cli.conftest import environment
from tests.reproduce.scales import listed, scale_of, write_scale, write_search
from tests.sweep.searches import seeds

FOUR = {"constrained": seeds(2), "erm": seeds(2, fixed={"objective": "erm"})}


def two_experiments(folder: Path) -> Path:
    """Six runs, four of which are evaluated."""
    arms = {"erm": seeds(2, fixed={"objective": "erm", "descent.alpha": 0.3})}
    one, other = write_search(folder, "one", arms=FOUR), write_search(folder, "other", arms=arms)
    return write_scale(folder, listed(one), listed(other, evaluate="all"))


def tables(*folders: Path) -> dict[str, bytes]:
    """The tables of all runs, by their names below the folders."""
    paths = {
        path for folder in folders for run in find_runs([folder]) for path in run.glob("*.csv")
    }
    return {"/".join(path.parts[-3:]): path.read_bytes() for path in paths}


# ---------------------------------------------------------------- in the storage


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/shared.db"


def begun(loaded: Reproduction, url: str) -> Reproduction:
    stored.begin(loaded, open_storage(url))
    return loaded


def test_a_reproduction_comes_back_from_its_storage(url, tmp_path):
    loaded = begun(scale.load("smoke"), url)
    found = stored.find(url, None)
    assert found.scale == loaded.scale
    assert [one.name for one in found.experiments] == [one.name for one in loaded.experiments]
    identities = [[one.sweep.identity() for one in some.experiments] for some in (found, loaded)]
    assert identities[0] == identities[1]


def test_with_several_reproductions_the_scale_is_named(url, tmp_path):
    with pytest.raises(UserError, match="no reproduction has begun here"):
        stored.find(url, None)
    # Looking for one makes no file.
    assert not list(tmp_path.iterdir())
    begun(scale_of(tmp_path), url)
    begun(scale.load("smoke"), url)
    with pytest.raises(UserError, match=r"choose one with --scale; there are mine, smoke"):
        stored.find(url, None)
    assert stored.find(url, "smoke").name == "smoke"


# ---------------------------------------------------------------- commands


def test_a_command_that_joins_needs_a_storage(command):
    code, _, errors = command("reproduce", "--join")
    assert code == 2
    assert errors.startswith("error: --join: needs --storage")
    code, _, errors = command("reproduce")
    assert code == 2
    assert errors.startswith("error: --scale: missing")


def test_a_machine_without_the_data_leaves_the_trials_to_others(
    command, no_processes, url, tmp_path
):
    scale_file = write_scale(
        tmp_path, listed(write_search(tmp_path, "lacking", recipe="imdb-ut", fixed=None))
    )
    code, printed, _ = command(
        "reproduce", "--scale", scale_file, "--device", "cpu", "--storage", url, "--out", "out"
    )
    assert code == 1
    assert "skipped        lacking · imdb-ut: 0 runs, 0 evaluated" in printed
    (experiment,) = stored.find(url, None).experiments
    queues = ExperimentQueues(
        experiment, open_storage(url), ReproduceOptions(tmp_path / "out", "cpu")
    )
    assert [trial.state for study in queues.studies for trial in study.trials()] == [
        "waiting",
        "waiting",
    ]


def test_all_commands_use_one_folder(url, tmp_path):
    loaded, storage = begun(scale_of(tmp_path), url), open_storage(url)
    for _ in range(2):
        stored.check_folder(storage, loaded, tmp_path / "a")
    with pytest.raises(UserError, match="has its runs in another folder; use that one"):
        stored.check_folder(storage, loaded, tmp_path / "b")


# ---------------------------------------------------------------- processes


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cudt", "reproduce", *map(str, arguments), "--device", "cpu"]
    variables = {**environment(), "CUDT_HEARTBEAT": "1"}
    return subprocess.Popen(
        command, cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_two_commands_one_of_them_killed_give_the_tables_of_one(url, tmp_path):
    scale_file = two_experiments(tmp_path)
    alone = start("--scale", scale_file, "--out", "alone", cwd=tmp_path)
    assert "done" in alone.communicate(timeout=600)[0]
    first = start("--scale", scale_file, "--out", "shared", "--storage", url, cwd=tmp_path)
    while not list(tmp_path.glob("shared/reviews-ut/*/run.json")):
        assert first.poll() is None
        time.sleep(0.1)
    second, third = (
        start("--join", "--out", "shared", "--storage", url, cwd=tmp_path) for _ in range(2)
    )
    while len(list(tmp_path.glob("shared/reviews-ut/*/run.json"))) < 3:
        time.sleep(0.1)
    os.kill(second.pid, signal.SIGKILL)
    for command in (first, third):
        printed, _ = command.communicate(timeout=600)
        assert command.returncode == 0, printed
        assert "done           one · reviews-ut: 4 runs, 2 evaluated" in printed
        assert "done           other · reviews-ut: 2 runs, 2 evaluated" in printed
    second.communicate()
    found = tables(tmp_path / "shared")
    expected = tables(tmp_path / "alone")
    assert found.keys() == expected.keys()
    assert {
        name for name in found if found[name] != expected[name] and "history" not in name
    } == set()
    assert (tmp_path / "shared" / "report" / "index.html").is_file()
