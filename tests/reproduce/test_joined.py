"""Several commands that share one reproduction: in one folder or in several, joining late, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from filelock import FileLock, Timeout

from cudt.reproduce import experiment_worker, run_experiments, scale, stored
from cudt.reproduce.experiment_worker import ReproductionJob
from cudt.reproduce.queues import ExperimentQueues
from cudt.reproduce.scale import Reproduction
from cudt.reproduce.stored import ReproduceOptions, Turn
from cudt.runs.find import find_runs
from cudt.sweep import worker
from cudt.sweep.storage import open_storage, own_storage
from cudt.sweep.stored import first_study, open_studies
from cudt.utils.errors import UserError
from tests.cli.conftest import environment
from tests.reproduce.scales import listed, scale_of, write_scale, write_search
from tests.reproduce.test_evaluation import train
from tests.sweep.searches import seeds

FOUR = {"constrained": seeds(2), "erm": seeds(2, fixed={"objective": "erm"})}


def two_experiments(folder: Path) -> Path:
    """Six runs, four of which are evaluated."""
    arms = {"erm": seeds(2, fixed={"objective": "erm", "descent.alpha": 0.3})}
    one, other = write_search(folder, "one", arms=FOUR), write_search(folder, "other", arms=arms)
    return write_scale(folder, listed(one), listed(other, evaluate="all"))


def tables(*folders: Path) -> dict[str, bytes]:
    """The tables of all runs, by their names below the folders."""
    paths = {path for folder in folders for run in find_runs([folder]) for path in run.glob("*.csv")}
    return {"/".join(path.parts[-3:]): path.read_bytes() for path in paths}


# ---------------------------------------------------------------- in the storage


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/shared.db"


def begun(loaded: Reproduction, url: str) -> Reproduction:
    stored.begin(loaded, [Turn(number, 1.0) for number in range(len(loaded.experiments))], open_storage(url))
    return loaded


def test_a_reproduction_comes_back_from_its_storage(url, tmp_path):
    loaded = begun(scale.load("smoke"), url)
    found = stored.find(url, None)
    assert found.scale == loaded.scale
    assert [one.name for one in found.experiments] == [one.name for one in loaded.experiments]
    identities = [[one.sweep.identity() for one in some.experiments] for some in (found, loaded)]
    assert identities[0] == identities[1]
    assert stored.order_of(open_storage(url), found)[3] == Turn(3, 1.0)


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


def test_a_reproduction_of_another_version_is_an_error_of_one_line(url, tmp_path):
    study = stored.root_study(begun(scale_of(tmp_path), url))
    optuna.load_study(storage=open_storage(url), study_name=study).set_user_attr("scale", "future: 1")
    with pytest.raises(UserError, match="mine was begun by another version of cudt"):
        stored.find(url, None)


def test_a_worker_keeps_its_experiments_when_the_scale_is_replaced(url, tmp_path, monkeypatch):
    one, other = listed(write_search(tmp_path, "one")), listed(write_search(tmp_path, "other"))
    loaded = begun(scale_of(tmp_path, one, other), url)
    mine = first_study(loaded.experiments[1].sweep)
    job = ReproductionJob(url, stored.root_study(loaded), (mine, "one that is gone"), tmp_path / "out", "cpu", None)
    begun(scale_of(tmp_path, other, one), url)
    titles: set[str] = set()
    monkeypatch.setattr(
        experiment_worker, "work", lambda sources: titles.update(source.queue.title for source in sources())
    )
    experiment_worker.main(job)
    assert titles == {"other · reviews-ut"}


def test_every_home_is_listed_once(url, tmp_path):
    loaded, storage = begun(scale_of(tmp_path), url), open_storage(url)
    homes = [stored.enter(storage, loaded, tmp_path / folder) for folder in ("a", "b", "a")]
    assert homes[0] == homes[2]
    assert stored.homes(storage, loaded) == homes[:2]


# ---------------------------------------------------------------- commands


def test_a_command_that_joins_needs_a_storage(command):
    code, _, errors = command("reproduce", "--join")
    assert code == 2
    assert errors.startswith("error: --join: needs --storage")
    code, _, errors = command("reproduce")
    assert code == 2
    assert errors.startswith("error: --scale: missing")


def test_a_machine_without_the_data_leaves_the_trials_to_others(command, no_processes, url, tmp_path):
    scale_file = write_scale(tmp_path, listed(write_search(tmp_path, "lacking", recipe="imdb-ut", fixed=None)))
    code, printed, _ = command("reproduce", "--scale", scale_file, "--device", "cpu", "--storage", url, "--out", "out")
    assert code == 1
    assert "skipped        lacking · imdb-ut: 0 runs, 0 evaluated" in printed
    (experiment,) = stored.find(url, None).experiments
    queues = ExperimentQueues(experiment, open_storage(url), "home", ReproduceOptions(tmp_path / "out", "cpu"))
    assert [trial.state for study in queues.studies for trial in study.trials()] == ["waiting", "waiting"]


def test_homes_that_differ_evaluate_their_own_runs(command, no_processes, url, tmp_path, monkeypatch):
    scale_file = two_experiments(tmp_path)
    began = ("reproduce", "--scale", scale_file, "--device", "cpu", "--storage", url, "--out", "a")
    # The first worker stops after two runs, as after Ctrl-C.
    real, n_trials = worker._run_next, iter(range(3))

    def stops(*given):
        if next(n_trials) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(run_experiments, "write_report", lambda *_, **__: None)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_run_next", stops)
        patch.setattr("tests.sweep.conftest.InThisProcess.start", lambda self, number: None)
        assert command(*began)[0] in (1, 130)
    assert len(find_runs([tmp_path / "a"])) == 2
    code, printed, _ = command("reproduce", "--join", "--device", "cpu", "--storage", url, "--out", "b")
    assert code == 1
    assert f"were not evaluated in {tmp_path}/a on " in printed
    assert "run `cudt reproduce --join` there" in printed
    # The first machine comes back.
    code, printed, _ = command(*began)
    assert code == 0
    assert "done           one · reviews-ut: 4 runs, 2 evaluated" in printed
    assert f"    {tmp_path}/b on " in printed
    runs = [{path.name for path in find_runs([tmp_path / home])} for home in ("a", "b")]
    assert [len(some) for some in runs] == [2, 4]
    assert not runs[0] & runs[1]
    assert len(list(tmp_path.glob("[ab]/*/*/ood.csv"))) == 4


def test_trials_of_an_earlier_version_are_copied_from_the_folder_of_their_sweep(tmp_path):
    (experiment,) = scale_of(tmp_path).experiments
    sweep, out = experiment.sweep, tmp_path / "out"
    sweep.folder(out).mkdir(parents=True)
    old = ExperimentQueues(experiment, open_storage(own_storage(sweep.folder(out))), "", ReproduceOptions(out, "cpu"))
    train(old, "erm", 0.7)
    storage = open_storage(None)
    for _ in range(2):
        stored.adopt_trials(sweep, out, storage)
    new = ExperimentQueues(experiment, storage, "", ReproduceOptions(out, "cpu"))
    states = {study.arm: [(trial.state, trial.score) for trial in study.trials()] for study in new.studies}
    assert states == {"constrained": [], "erm": [("finished", 0.7)]}


def test_what_a_killed_command_did_not_copy_is_copied_while_nobody_else_begins(tmp_path, monkeypatch):
    (experiment,) = scale_of(tmp_path).experiments
    sweep, out = experiment.sweep, tmp_path / "out"
    sweep.folder(out).mkdir(parents=True)
    old, new = open_storage(own_storage(sweep.folder(out))), open_storage(None)
    names = [study.name for study in open_studies(sweep, old)]
    real = optuna.copy_study
    real(from_study_name=names[0], from_storage=old, to_storage=new)

    def copied(**given) -> None:
        with pytest.raises(Timeout), FileLock(out / ".adopt.lock", timeout=0):
            pass
        real(**given)

    monkeypatch.setattr(optuna, "copy_study", copied)
    stored.adopt_trials(sweep, out, new)
    assert sorted(optuna.get_all_study_names(new)) == sorted(names)


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
    second, third = (start("--join", "--out", "shared", "--storage", url, cwd=tmp_path) for _ in range(2))
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
    assert {name for name in found if found[name] != expected[name] and "history" not in name} == set()
    assert (tmp_path / "shared" / "report" / "index.html").is_file()
