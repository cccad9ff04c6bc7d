from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from cudt.evaluation import evaluate
from cudt.evaluation.grid import Grid
from cudt.reproduce import evaluation
from cudt.reproduce.evaluation import EvaluationJob
from cudt.runs.options import RunOptions
from cudt.runs.run import Run
from cudt.utils.errors import TrainingInterruptedError
from cudt.utils.workers import Died, Interrupted, Warned
from tests.reproduce.scales import experiment_of, listed, scale_of, write_search
from tests.sweep.searches import seeds


@pytest.fixture
def run(trained_run, tmp_path) -> Path:
    return shutil.copytree(trained_run.path, tmp_path / "out" / "run")


@pytest.fixture
def evaluated(monkeypatch) -> list[tuple[str, str]]:
    """Which runs are evaluated under which noise."""
    found: list[tuple[str, str]] = []
    real = evaluate.evaluate_ood

    def watched(run, grid, *more) -> None:
        found.append((run.path.name, *(grid.perturbations or [])))
        real(run, grid, *more)

    monkeypatch.setattr(evaluate, "evaluate_ood", watched)
    return found


def job(run: Path, *kinds: str, noise_seeds: tuple[int, ...] = (0,)) -> EvaluationJob:
    return EvaluationJob(run, "cpu", None, Grid(perturbations=[*kinds], noise_seeds=[*noise_seeds]))


def run_jobs(jobs: list[EvaluationJob], folder: Path) -> tuple[list[str], list[str]]:
    printed: list[str] = []
    return evaluation.run_jobs(jobs, RunOptions(folder, "cpu"), folder / "logs", printed.append), printed


# ---------------------------------------------------------------- evaluating


def test_an_evaluated_run_is_skipped(run, evaluated, no_processes, tmp_path):
    failures, printed = run_jobs([job(run, "gaussian")], tmp_path)
    assert not failures
    assert printed[0].startswith(f"1/1  {run}  evaluated in ")
    assert run_jobs([job(run, "gaussian")], tmp_path) == ([], [])
    # Another kind of noise only, then both again with another draw.
    run_jobs([job(run, "gaussian", "uniform")], tmp_path)
    run_jobs([job(run, "gaussian", "uniform", noise_seeds=(0, 1))], tmp_path)
    assert evaluated == [("run", "gaussian"), ("run", "uniform"), ("run", "gaussian"), ("run", "uniform")]


def test_a_run_that_cannot_be_evaluated_is_reported_and_the_others_are_evaluated(run, no_processes, tmp_path):
    broken = shutil.copytree(run, tmp_path / "out" / "broken")
    (broken / "checkpoints" / "best.safetensors").unlink()
    failures, printed = run_jobs([job(broken, "gaussian"), job(run, "gaussian")], tmp_path)
    assert len(failures) == 1
    assert failures[0].startswith(f"{broken}: {broken}/checkpoints/best.safetensors: missing or damaged")
    assert len(printed) == 2
    assert job(run, "gaussian").is_done()


def test_a_run_is_evaluated_in_a_worker_process(run, tmp_path):
    assert run_jobs([job(run, "gaussian")], tmp_path)[0] == []
    assert job(run, "gaussian").is_done()


def test_a_stop_request_ends_it(run, no_processes, tmp_path, monkeypatch):
    class Stopped:
        requested = True

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

    monkeypatch.setattr(evaluation, "StopRequest", Stopped)
    with pytest.raises(TrainingInterruptedError, match="run the same command to resume"):
        run_jobs([job(run, "gaussian")], tmp_path)
    assert not job(run, "gaussian").is_done()


def test_a_process_that_died_is_reported():
    assert evaluation._problem(Died("by signal 9 (SIGKILL)")) == "the worker process ended by signal 9 (SIGKILL)"
    assert evaluation._problem(Interrupted()) == "interrupted, can be resumed"


def test_a_warning_about_the_data_is_printed_once():
    printed: list[str] = []
    outcomes = evaluation._Outcomes(2, printed.append)
    for _ in range(2):
        outcomes.add(job(Path("run"), "gaussian"), 1.0, Warned("a clip is skipped"), is_stopping=False)
    assert (printed, outcomes.failures) == (["warning: a clip is skipped"], [])


# ---------------------------------------------------------------- which runs


def trials(*rows: tuple[str, int, str, float | None]) -> pd.DataFrame:
    """Arm, number, state and score."""
    table = pd.DataFrame(rows, columns=["arm", "trial", "state", "score"])
    table["run"] = [f"reviews-ut/{arm}-{number}" for arm, number, *_ in rows]
    for name, value in {"setting": "", "seconds": 1.0, "updates": 3, "reason": ""}.items():
        table[name] = value
    return table


@pytest.mark.parametrize(
    ("evaluate", "names"),
    [("best", ["constrained-1", "erm-0"]), ("all", ["constrained-0", "constrained-1", "erm-0"])],
)
def test_the_best_run_of_each_arm_or_all_finished_runs_are_evaluated(evaluate, names, tmp_path):
    arms = {"constrained": seeds(2), "erm": seeds(2, fixed={"objective": "erm"})}
    (experiment,) = scale_of(tmp_path, listed(write_search(tmp_path, arms=arms), evaluate=evaluate)).experiments
    table = trials(
        ("constrained", 0, "finished", 0.5),
        ("constrained", 1, "finished", 0.7),
        ("erm", 0, "finished", 0.6),
        ("erm", 1, "failed", None),
    )
    found = evaluation.jobs(experiment, RunOptions(tmp_path / "out", "cpu"), table)
    assert [one.run for one in found] == [tmp_path / "out" / "reviews-ut" / name for name in names]


def test_before_a_sweep_has_begun_nothing_is_done_and_nothing_spent(tmp_path):
    experiment, options = experiment_of(tmp_path), RunOptions(tmp_path / "out", "cpu")
    assert evaluation.n_done(experiment, options) == 0
    assert evaluation.spent(experiment, options) == (0.0, 0.0)


def test_the_best_run_of_each_arm_answers_the_instructions_at_every_level(tmp_path):
    asked = {"instructions": "mine.json", "gammas": [0.0, 1.5], "limit": 2}
    (experiment,) = scale_of(tmp_path, listed("smoke-llama", evaluate="all", completions=asked)).experiments
    options = RunOptions(tmp_path / "out", "cpu", tmp_path)
    table = trials(("constrained", 0, "finished", 0.5), ("constrained", 1, "finished", 0.7))
    # Without the instructions file there are no completions.
    assert [one.requests for one in evaluation.jobs(experiment, options, table)] == [(), ()]
    (tmp_path / "mine.json").write_text("[]")
    one, two = evaluation.jobs(experiment, options, table)
    assert one.requests == ()
    assert [(request.gamma, request.limit) for request in two.requests] == [(0.0, 2), (1.5, 2)]


# ---------------------------------------------------------------- reading what is done


def test_a_run_is_not_done_while_its_tables_are_being_written(run, monkeypatch):
    evaluation.evaluate_run(job(run, "gaussian"), print)
    monkeypatch.setattr(Run, "merge_table", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        evaluation.evaluate_run(job(run, "gaussian", noise_seeds=(7,)), print)
    assert not job(run, "gaussian").is_done()


@pytest.mark.parametrize("setting", ["", "noise.gamma_train=0.5"])
def test_trials_are_read_as_the_sweep_wrote_them(setting, tmp_path):
    experiment = experiment_of(tmp_path)
    folder = experiment.sweep.folder(tmp_path / "out")
    folder.mkdir(parents=True)
    trials(("erm", 0, "finished", 0.5)).assign(setting=setting).to_csv(folder / "trials_wide.csv", index=False)
    read = evaluation.trials_of(experiment, tmp_path / "out")
    assert read is not None
    assert read["setting"].tolist() == [setting]
    assert [job.run.name for job in evaluation.jobs(experiment, RunOptions(tmp_path / "out", "cpu"), read)] == ["erm-0"]
