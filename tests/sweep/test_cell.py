from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from cudt.data.loader import batches
from cudt.evaluation import evaluate
from cudt.noise import NoiseSource
from cudt.runs.run import Run, run_for
from cudt.sweep import cell
from cudt.sweep.messages import CellJob
from cudt.training import train as training
from cudt.training.trainer import Trainer
from cudt.utils.errors import DataWarning, UserError
from tests.conftest import tiny_recipe
from tests.measured import measure
from tests.pretrained import tiny_pretrained
from tests.sweep.searches import seeds, write_search
from tests.texts import write_recipe, write_reviews

CPU = torch.device("cpu")
GAMMAS = [0.0, 0.5, 2.0]


@pytest.fixture
def run(trained_run, tmp_path) -> Run:
    """A copy of a finished run."""
    out = Path(shutil.copytree(trained_run.path.parents[1], tmp_path / "out"))
    return run_for(trained_run.recipe, out)


def ignore(value: object) -> None:
    """A report callback that does nothing."""


def job_for(run: Run, measure: str = "metric", gammas: list[float] | None = None) -> CellJob:
    return CellJob(run.recipe.text(), run.path.parents[1], "cpu", None, measure, gammas)


@pytest.fixture
def no_training(monkeypatch) -> None:
    def fit(self) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "fit", fit)


@contextmanager
def held(run: Run, seconds: float) -> Iterator[threading.Thread]:
    """Somebody else is at work on a run, for a while."""
    has_begun = threading.Event()

    def hold() -> None:
        with run.locked():
            has_begun.set()
            time.sleep(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    has_begun.wait()
    yield thread
    thread.join()


# ---------------------------------------------------------------- scores


def test_the_loss_is_that_of_the_last_layer_in_the_best_epoch(run):
    history = run.read_table("history")
    rows = history[
        (history["split"] == "validation") & (history["name"] == "loss") & (history["layer"] == 3)
    ]
    by_epoch = dict(zip(rows["epoch"], rows["value"], strict=True))
    assert len(by_epoch) == 2
    assert cell.score_of(run, "loss", None) == pytest.approx(
        by_epoch[run.finished_info().best.epoch], abs=1e-6
    )


def test_the_metric_is_that_of_the_last_layer_on_validation_data_at_the_level_of_training(run):
    layerwise = training.load(run, "cpu", None)
    task, settings = layerwise.task, run.recipe.settings
    noise = NoiseSource(settings.noise.kind, run.finished_info().sigma_x.training, "validation")
    data = batches(task, task.examples("validation"), 7, CPU)
    (level,) = measure(layerwise, data, noise, [settings.noise.gamma_train])
    assert cell.score_of(run, "metric", None) == pytest.approx(
        level.layer_scores[-1].item(), abs=1e-9
    )


def test_the_grid_is_the_mean_metric_over_its_levels_on_validation_data(run):
    found = cell.run_cell(job_for(run, "grid", GAMMAS), ignore)
    layerwise = training.load(run, "cpu", None)
    task = layerwise.task
    noise = NoiseSource(run.recipe.settings.noise.kind, run.finished_info().sigma_x.evaluation, 0)
    levels = measure(layerwise, batches(task, task.examples("validation"), 7, CPU), noise, GAMMAS)
    by_hand = [level.layer_scores[-1].item() for level in levels]
    assert len(set(by_hand)) > 1
    assert found.score == pytest.approx(sum(by_hand) / 3, abs=1e-9)
    # Of these levels alone, whatever else was judged before.
    assert cell.score_of(run, "grid", [0.5]) == pytest.approx(by_hand[1], abs=1e-9)


# ---------------------------------------------------------------- what is left of a cell


def test_a_cell_is_the_run_that_train_would_make_without_what_a_sweep_does_not_need(
    trained_run, tmp_path
):
    done = cell.run_cell(
        CellJob(tiny_recipe().text(), tmp_path, "cpu", None, "metric", None), ignore
    )
    run = run_for(tiny_recipe(), tmp_path)
    assert run.path.relative_to(tmp_path) == trained_run.path.relative_to(
        trained_run.path.parents[1]
    )
    for name in ("history.csv", "layers.csv", "recipe.yaml", "checkpoints/best.safetensors"):
        assert (run.path / name).read_bytes() == (trained_run.path / name).read_bytes()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "best.safetensors",
        "last.safetensors",
    ]
    assert not (run.path / "model").exists()
    assert not (run.path / "validation.csv").exists()
    info, layers = run.finished_info(), run.read_table("layers")
    assert info.command == f"cudt train --recipe {run.path / 'recipe.yaml'} --out {tmp_path}"
    # 96 examples in updates of 32, twice.
    assert done.facts == {
        "validation_loss": layers["loss"].iloc[-1],
        "validation_metric": layers["metric"].iloc[-1],
        "feasible": info.feasible,
        "monotone": info.monotone,
        "best_epoch": info.best.epoch,
        "updates": 6,
    }


def test_a_cell_that_keeps_no_weights_is_scored_before_they_are_deleted(tmp_path, trained_run):
    recipe = tiny_recipe("checkpoints.keep=none-when-finished")
    job = CellJob(recipe.text(), tmp_path, "cpu", None, "grid", GAMMAS)
    done, run = cell.run_cell(job, ignore), run_for(recipe, tmp_path)
    assert run.path.name == trained_run.path.name
    assert list((run.path / "checkpoints").iterdir()) == []
    assert cell.run_cell(job, ignore) == done
    with pytest.raises(
        UserError, match=r"not kept .*none-when-finished.*train the run again in another folder"
    ):
        evaluate.evaluate_validation(run, [0.7], "cpu", None, lambda batches, total, what: batches)


def test_a_finished_run_is_judged_and_not_trained_again(run, no_training):
    weights = run.weights_file("best").read_bytes()
    first = cell.run_cell(job_for(run, "grid", GAMMAS), ignore)
    assert cell.run_cell(job_for(run, "grid", GAMMAS), ignore) == first
    assert run.weights_file("best").read_bytes() == weights


def test_a_cell_waits_for_another_process_that_uses_its_run(run, no_training):
    with held(run, 0.5) as other:
        with pytest.warns(
            DataWarning, match="another process is using this run; waiting for it to end"
        ):
            cell.run_cell(job_for(run), ignore)
        assert not other.is_alive()


# ---------------------------------------------------------------- test data


MEASURES = {
    "metric": {"measure": "metric", "direction": "maximize"},
    "loss": {"measure": "loss", "direction": "minimize"},
    "grid": {"measure": "grid", "direction": "maximize"},
}


@pytest.mark.parametrize("measure", ["metric", "grid"])
def test_a_sweep_does_not_open_the_test_data(measure, command, no_processes, tmp_path):
    write_reviews(tmp_path)
    write_recipe(tmp_path, tiny_pretrained(tmp_path / "bert"))
    (tmp_path / "test.csv").write_bytes(b"\xff\xfe no table \x00")
    asked = {"recipe": "own.yaml", "fixed": {"training.epochs": 1}, "score": MEASURES[measure]}
    path = write_search(tmp_path, **asked, arms={"constrained": seeds(1)})
    code, output, error = command(
        "sweep", "--search", path, "--data-root", tmp_path, "--device", "cpu"
    )
    assert code == 0, error
    assert "1/1  constrained: seed=0  score" in output
    # So it had not been looked at before.
    (folder,) = Path("outputs/own").iterdir()
    code, _, error = command("eval-ood", folder, "--data-root", tmp_path, "--device", "cpu")
    assert code == 2
    assert str(tmp_path / "test.csv") in error
