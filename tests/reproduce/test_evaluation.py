"""Which runs are evaluated, and when; what an evaluation does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cudt.runs.completions import CompletionSet, write_completions
from cudt.sweep.evaluate_runs import tracking
from optuna.storages import BaseStorage

from cudt.config import recipe as recipes
from cudt.config import yaml
from cudt.evaluation import evaluate
from cudt.reproduce import evaluation, needs
from cudt.reproduce.queues import ExperimentQueues
from cudt.reproduce.scale import Experiment
from cudt.reproduce.stored import ReproduceOptions
from cudt.runs.run import Run, open_run
from cudt.sweep.lease import Lease
from cudt.sweep.storage import open_storage
from cudt.training import train as training
from tests import instructions
from tests.conftest import quiet
from tests.instructions import write_instructions, write_recipe
from tests.pretrained import tiny_llama
from tests.reproduce.scales import experiment_of, listed, scale_of, write_search
from tests.sweep.searches import fail, finish, seeds
from tests.videos import write_avenue, write_shanghaitech, write_ucsd

ONE = {"erm": seeds(1, fixed={"objective": "erm"})}
TWO_EACH = {"constrained": seeds(2), "erm": seeds(2, fixed={"objective": "erm"})}


@pytest.fixture
def storage() -> BaseStorage:
    return open_storage(None)


def queues_of(experiment: Experiment, storage: BaseStorage, out: Path, **more: Any):
    return ExperimentQueues(experiment, storage, ReproduceOptions(out, "cpu", **more))


def train(queues: ExperimentQueues, arm: str, score: float | None) -> None:
    """End the next trial of an arm, as a worker does; without a score it fails."""
    (study,) = (one for one in queues.studies if one.arm == arm)
    trial = study.next()
    assert trial is not None
    facts = {"run": f"reviews-ut/{arm}-{trial.cell}", "seconds": 2.0}
    if score is None:
        fail(study, trial, "it diverged", facts)
    else:
        finish(study, trial, score, facts)
    study.refresh()


def cells(queue: Any) -> list[str]:
    return [str(cell) for cell, _ in queue.cells()]


def one_run(tmp_path: Path, **changes: Any) -> Experiment:
    (experiment,) = scale_of(
        tmp_path, listed(write_search(tmp_path, arms=ONE), **changes)
    ).experiments
    return experiment


def four_runs(tmp_path: Path, evaluate: str) -> Experiment:
    (experiment,) = scale_of(
        tmp_path, listed(write_search(tmp_path, arms=TWO_EACH), evaluate=evaluate)
    ).experiments
    return experiment


def test_the_best_run_of_each_arm_is_evaluated_when_its_sweep_has_ended(storage, tmp_path):
    queues = queues_of(four_runs(tmp_path, "best"), storage, tmp_path / "out")
    queue = queues.evaluations.queue
    train(queues, "constrained", 0.5)
    train(queues, "constrained", 0.7)
    train(queues, "erm", 0.6)
    assert cells(queue) == []
    assert not queue.is_done
    # As many as are to be expected.
    assert queue.n_left == 2
    train(queues, "erm", None)
    assert cells(queue) == ["reviews-ut/constrained-1", "reviews-ut/erm-0"]


def test_if_all_runs_are_evaluated_each_is_when_it_has_ended(storage, tmp_path):
    queues = queues_of(four_runs(tmp_path, "all"), storage, tmp_path / "out")
    queue = queues.evaluations.queue
    train(queues, "erm", 0.6)
    assert cells(queue) == ["reviews-ut/erm-0"]
    train(queues, "constrained", 0.5)
    assert cells(queue) == ["reviews-ut/constrained-0", "reviews-ut/erm-0"]
    assert not queue.is_done


def test_a_sweep_that_only_chooses_settings_is_not_evaluated(storage, tmp_path):
    queues = queues_of(four_runs(tmp_path, "none"), storage, tmp_path / "out")
    queue = queues.evaluations.queue
    assert queue.n_left == 0
    for arm in ("constrained", "constrained", "erm", "erm"):
        train(queues, arm, 0.5)
    assert cells(queue) == []
    assert queues.is_done


def test_the_best_run_of_each_arm_answers_the_instructions_at_every_level(storage, tmp_path):
    asked = {"instructions": "mine.json", "gammas": [0.0, 1.5], "limit": 2}
    (experiment,) = scale_of(
        tmp_path, listed("smoke-llama", evaluate="all", completions=asked)
    ).experiments
    # Without the instructions file there are no completions.
    assert queues_of(experiment, storage, tmp_path / "out", data_root=tmp_path).completions is None
    (tmp_path / "mine.json").write_text("[]")
    queues = queues_of(experiment, storage, tmp_path / "out", data_root=tmp_path)
    assert queues.completions is not None
    assert [(one.gamma, one.limit) for one in queues.completions.requests] == [(0.0, 2), (1.5, 2)]
    train(queues, "constrained", 0.5)
    assert cells(queues.completions.queue) == []
    train(queues, "erm", 0.5)
    runs = ("reviews-ut/constrained-0", "reviews-ut/erm-0")
    assert cells(queues.completions.queue) == [
        f"{run} γ={gamma}" for run in runs for gamma in ("0", "1.5")
    ]
    assert queues.completions.queue.n_left == queues.completions.queue.n_expected == 4


LLAMA: dict[str, Any] = {"recipe": "smoke-llama", "fixed": None, "arms": TWO_EACH}


def answering(tmp_path: Path, **changes: Any) -> Experiment:
    """An experiment with two runs in each arm, whose completions answer two instructions."""
    (tmp_path / "mine.json").write_text(json.dumps([{"instruction": text} for text in ASKED]))
    asked = {"instructions": "mine.json", "gammas": [0.0, 1.5], "max_new_tokens": 3, **changes}
    name = write_search(tmp_path, "llama", **LLAMA)
    (experiment,) = scale_of(tmp_path, listed(name, completions=asked)).experiments
    return experiment


ASKED = ("Say red.", "Say blue.")


def test_all_runs_answer_when_they_have_ended_if_asked(storage, tmp_path):
    queues = queues_of(
        answering(tmp_path, runs="all"), storage, tmp_path / "out", data_root=tmp_path
    )
    assert queues.completions is not None
    queue = queues.completions.queue
    assert queue.n_expected == 8
    train(queues, "erm", 0.5)
    assert cells(queue) == ["reviews-ut/erm-0 γ=0", "reviews-ut/erm-0 γ=1.5"]
    # Evaluations are of the best runs only, which nobody knows yet.
    assert cells(queues.evaluations.queue) == []
    for arm, score in (("erm", 0.7), ("constrained", 0.7), ("constrained", 0.5)):
        train(queues, arm, score)
    assert len(cells(queue)) == 8
    assert cells(queues.evaluations.queue) == ["reviews-ut/constrained-0", "reviews-ut/erm-1"]


@pytest.fixture(scope="module")
def llamas(tmp_path_factory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("llamas")
    write_instructions(folder)
    write_recipe(folder, tiny_llama(folder / "llama", initializer_range=0.5))
    return {
        one: instructions.train(folder, folder, "training.epochs=1", objective=one)
        for one in ("constrained", "erm")
    }


def test_the_best_run_of_each_arm_is_paired(llamas, storage, tmp_path):
    out = tmp_path / "out"
    queues = queues_of(answering(tmp_path, runs="all"), storage, out, data_root=tmp_path)
    completions = queues.completions
    assert completions is not None
    for arm, score in (("constrained", 0.5), ("constrained", 0.7), ("erm", 0.5), ("erm", 0.7)):
        train(queues, arm, score)
    for arm in ("constrained", "erm"):
        for number in range(2):
            shutil.copytree(llamas[arm].path, out / "reviews-ut" / f"{arm}-{number}")
    for cell in cells(completions.queue):
        if cell != "reviews-ut/erm-0 γ=1.5":
            path, _, gamma = cell.partition(" γ=")
            answers = [
                {"instruction": one, "output": one, "generator": "x", "dataset": "mine"}
                for one in ASKED
            ]
            write_completions(CompletionSet("mine", float(gamma), 0, 3).path(out / path), answers)
    # The pairs are of the best run of each arm.
    assert [path.parent.parent.name for path in completions.compare()] == ["erm-1", "erm-1"]
    assert completions.compare()[0].stem.endswith("-against-constrained-1")


# ---------------------------------------------------------------- evaluating


@pytest.fixture
def evaluated(monkeypatch) -> list[str]:
    """Under which noise runs are evaluated."""
    found: list[str] = []
    real = evaluate.evaluate_ood

    def watched(run, grid, *more) -> None:
        found.extend(grid.perturbations or [])
        real(run, grid, *more)

    monkeypatch.setattr(evaluate, "evaluate_ood", watched)
    return found


def test_a_run_is_evaluated_once_under_each_noise(trained_run, evaluated, storage, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(trained_run.path, out / "reviews-ut" / "erm-0")

    def evaluate_with(**noise: Any) -> None:
        queues = queues_of(one_run(tmp_path, **noise), storage, out)
        if queues.studies[0].left:
            train(queues, "erm", 0.5)
        queue = queues.evaluations.queue
        trial = queue.next()
        assert trial is not None
        result = queues.evaluations.run(
            trial, lambda progress: None, Lease(storage, trial.trial_id)
        )
        finish(queue, trial, result.score, result.facts)
        assert queues.evaluations.is_done("reviews-ut/erm-0")

    evaluate_with()
    evaluate_with(perturbations=["gaussian", "uniform"])
    assert evaluated == ["gaussian", "uniform"]
    # Complete in the storage, but no longer on disk: it is made again, and only then.
    queues = queues_of(one_run(tmp_path), storage, out)
    for study in queues.studies:
        study.refresh()
    queues.begin(retry_failed=False)
    assert not queues.evaluations.queue.has_waiting
    shutil.rmtree(out / "reviews-ut")
    queues.begin(retry_failed=False)
    queues.evaluations.queue.refresh()
    assert queues.evaluations.queue.has_waiting


def test_a_run_is_not_done_while_its_tables_are_being_written(
    trained_run, monkeypatch, storage, tmp_path
):
    path = Path(shutil.copytree(trained_run.path, tmp_path / "run"))
    experiment = experiment_of(tmp_path)
    assert not evaluation.is_evaluated(experiment, path)
    assert not evaluation.is_evaluated(experiment, tmp_path / "missing")
    monkeypatch.setattr(Run, "merge_table", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    run = Run(path, trained_run.recipe)
    with pytest.raises(KeyboardInterrupt):
        evaluate.evaluate_ood(
            run, evaluation.grid_of(experiment), "cpu", None, tracking(lambda progress: None)
        )
    assert not evaluation.is_evaluated(experiment, path)


# ---------------------------------------------------------------- early exits and other data


def test_early_exits_are_added_without_evaluating_again(trained_run, evaluated, storage, tmp_path):
    out = tmp_path / "out"
    path = Path(shutil.copytree(trained_run.path, out / "reviews-ut" / "erm-0"))
    plain, with_exits = one_run(tmp_path), one_run(tmp_path, exits=True)
    evaluate_once(plain, storage, out)
    assert evaluation.is_evaluated(plain, path)
    assert not evaluation.is_evaluated(with_exits, path)
    before = (path / "ood.csv").read_bytes()
    evaluate_once(with_exits, storage, out)
    assert evaluated == ["gaussian"]
    assert (path / "ood.csv").read_bytes() == before
    assert evaluation.is_evaluated(with_exits, path)
    table = open_run(path).read_table("exits")
    assert {*table["split"]} == {"validation", "test"}
    # A level that is missing makes them incomplete.
    open_run(path).write_table("exits", table[table["gamma"] != 0.5])
    assert not evaluation.is_evaluated(with_exits, path)


def evaluate_once(
    experiment: Experiment, storage: BaseStorage, out: Path, root: Path | None = None
) -> None:
    """Train the only arm in name, and evaluate the run `erm-0`, which is there."""
    queues = queues_of(experiment, storage, out, data_root=root)
    if queues.studies[0].left:
        train(queues, "erm", 0.5)
    queue = queues.evaluations.queue
    queues.begin(retry_failed=False)
    queue.refresh()
    trial = queue.next()
    assert trial is not None
    result = queues.evaluations.run(trial, lambda progress: None, Lease(storage, trial.trial_id))
    finish(queue, trial, result.score, result.facts)


@pytest.fixture
def video(tmp_path, monkeypatch) -> Experiment:
    """Runs on small clips of UCSD that are also evaluated on Avenue, which is there, and on
    ShanghaiTech."""
    values = recipes.read(recipes.locate("smoke-video"))
    task = {"name": "ucsd", "frames": 3, "stride": 1, "size": 16, "validation_share": 0.3}
    own = tmp_path / "small-ucsd.yaml"
    own.write_text(yaml.dump({**values, "task": task, "evaluation": {"gammas": [0.5]}}))
    write_ucsd(tmp_path / "data")
    write_avenue(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    score = {"measure": "loss", "direction": "minimize"}
    file = write_search(tmp_path, arms=ONE, recipe=str(own), score=score, fixed=None)
    made = scale_of(tmp_path, listed(file, on=["avenue", "shanghaitech"], evaluate="all"))
    return made.experiments[0]


def test_runs_are_evaluated_on_other_data_that_are_there(video, evaluated, storage, tmp_path):
    out, root = tmp_path / "out", tmp_path / "data"
    trained = training.train(
        recipes.load("small-ucsd.yaml"), tmp_path / "trained", "cpu", root, quiet()
    )
    path = Path(shutil.copytree(trained.path, out / "reviews-ut" / "erm-0"))
    (lacking,) = needs.missing_other(video, root)
    assert lacking.startswith(
        f"on shanghaitech: dataset ShanghaiTech: no folder training/videos in {root}"
    )
    evaluate_once(video, storage, out, root)
    assert evaluated == ["gaussian", "gaussian"]
    assert [one.name for one in sorted(path.glob("on-*"))] == ["on-avenue"]
    assert evaluation.is_evaluated(video, path, root)
    # Nothing is left to do until the other data arrive; then only they are evaluated on.
    queues = queues_of(video, storage, out, data_root=root)
    queues.begin(retry_failed=False)
    assert not queues.evaluations.queue.has_waiting
    write_shanghaitech(root)
    assert not evaluation.is_evaluated(video, path, root)
    evaluate_once(video, storage, out, root)
    assert evaluated == ["gaussian"] * 3
    assert [one.name for one in sorted(path.glob("on-*"))] == ["on-avenue", "on-shanghaitech"]
    assert evaluation.is_evaluated(video, path, root)
