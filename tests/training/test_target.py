from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cudt.method.constraints import rate_for_target
from cudt.runs.find import find_runs, open_run, run_for
from cudt.training import launch, target
from cudt.utils.errors import UserError
from cudt.utils.reading import unsealed
from tests.conftest import TINY, quiet, tiny_recipe, train_quietly

AUTO = "descent.alpha={target_loss: auto}"
#: A loss that every model reaches: this is about α, not about learning.
EASY = "descent.reference=9.0"


def target_file(out: Path) -> Path:
    (file,) = (out / "reviews-ut").glob(".target-*.json")
    return file


def no_training(*_: object, **__: object) -> None:
    raise AssertionError("trained again")


def test_without_an_erm_run_a_pilot_of_a_quarter_of_the_epochs_is_trained(tmp_path):
    said: list[str] = []
    loaded = tiny_recipe(AUTO, EASY, "training.epochs=5", seed=3)
    run = launch.train(loaded, tmp_path, "cpu", None, quiet(), announce=said.append)
    # Seed 0 and two of five epochs, whichever run asks.
    pilot = train_quietly(tiny_recipe(EASY, "training.epochs=2", objective="erm"), tmp_path / "pilot")
    found = run.finished_info()
    assert found.target is not None
    assert found.target.loss == pilot.finished_info().verdicts[-1].loss
    assert found.target.source == "a pilot run of ERM, 2 epochs, seed 0"
    assert found.rates == pytest.approx([rate_for_target(found.target.loss, 9.0, 3)] * 3)
    assert said[0] == "target_loss: auto: no ERM run of reviews-ut has these settings; training a pilot"
    assert f"(1 − α)^L·f_0 = {found.target.loss:.4g}, f_0 = 9" in said[1]
    assert said[2] == f"target_loss: auto is {found.target.loss:.4g}, from a pilot run of ERM, 2 epochs, seed 0"
    # The pilot leaves nothing but its number.
    assert find_runs([tmp_path / "reviews-ut"]) == [run.path]
    assert unsealed(target_file(tmp_path).read_bytes()) == found.target.model_dump()


def test_only_runs_are_visible_in_the_recipes_folder(tmp_path):
    """`cudt eval-ood outputs/reviews-ut/*` gets every name that is not hidden."""
    train_quietly(tiny_recipe(EASY, objective="erm"), tmp_path)
    run = train_quietly(tiny_recipe(AUTO, EASY), tmp_path)
    visible = [path for path in run.path.parent.iterdir() if not path.name.startswith(".")]
    assert sorted(visible) == find_runs([tmp_path])


def test_finished_erm_runs_of_the_same_settings_are_averaged_whatever_their_constraints(tmp_path):
    trained = [
        train_quietly(tiny_recipe(EASY, objective="erm", seed=0), tmp_path),
        train_quietly(tiny_recipe(EASY, AUTO, objective="erm", seed=1), tmp_path),
    ]
    others = [
        tiny_recipe("training.learning_rate=1e-5", objective="erm"),
        tiny_recipe("descent.form=log", objective="erm"),
    ]
    for other in others:
        train_quietly(other, tmp_path)
    (tmp_path / "reviews-ut" / "erm-damaged").mkdir()
    found = target.of_finished_runs(tiny_recipe(AUTO, EASY), tmp_path)
    assert found is not None
    losses = [run.finished_info().verdicts[-1].loss for run in trained]
    assert found.loss == pytest.approx(sum(losses) / 2)
    assert found.source == "finished ERM runs of reviews-ut, seeds 0, 1"
    # An ERM run is judged without a target of its own.
    assert trained[1].finished_info().rates == [0, 0, 0]
    assert trained[1].finished_info().target is None


def test_all_seeds_and_resumed_runs_use_the_first_measurement(tmp_path, monkeypatch):
    train_quietly(tiny_recipe(EASY, objective="erm"), tmp_path)
    first = train_quietly(tiny_recipe(AUTO, EASY), tmp_path)
    train_quietly(tiny_recipe(EASY, objective="erm", seed=1), tmp_path)
    second = train_quietly(tiny_recipe(AUTO, EASY, seed=1), tmp_path)
    assert first.finished_info().target == second.finished_info().target
    # A run that has begun does not need the file.
    third = run_for(tiny_recipe(AUTO, EASY, seed=2), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("cudt.training.trainer.Trainer.fit", lambda trainer: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(Exception, match="interrupted"):
            train_quietly(third.recipe, tmp_path)
    target_file(tmp_path).write_text(json.dumps({"loss": 0.001, "source": "other"}))
    train_quietly(third.recipe, tmp_path)
    assert third.finished_info().target == first.finished_info().target


def test_a_target_that_does_not_improve_on_the_reference_is_refused(tmp_path):
    train_quietly(tiny_recipe("training.learning_rate=1e-9", "descent.reference=0.1", objective="erm"), tmp_path)
    message = (
        r"^descent\.alpha: target_loss: auto takes ERM's validation loss 0\.\d+, which does not improve on f_0 = 0\.1;"
    )
    with pytest.raises(UserError, match=message):
        train_quietly(tiny_recipe("training.learning_rate=1e-9", "descent.reference=0.1", AUTO), tmp_path)


def test_a_pilot_that_does_not_improve_on_the_reference_leaves_no_target(tmp_path):
    hopeless = (AUTO, "training.learning_rate=1e-9", "descent.reference=0.1")
    with pytest.raises(UserError, match=r"^descent\.alpha: target_loss: auto takes ERM's validation loss"):
        train_quietly(tiny_recipe(*hopeless), tmp_path)
    assert [*tmp_path.rglob("*.json")] == []


def test_a_pilots_target_is_kept_but_finished_erm_runs_are_mentioned(tmp_path):
    first = train_quietly(tiny_recipe(AUTO, EASY), tmp_path)
    train_quietly(tiny_recipe(EASY, objective="erm", seed=1), tmp_path)
    said: list[str] = []
    second = launch.train(tiny_recipe(AUTO, EASY, seed=1), tmp_path, "cpu", None, quiet(), announce=said.append)
    assert second.finished_info().target == first.finished_info().target
    assert "is from a pilot run of ERM, 1 epoch, seed 0, and finished ERM runs of reviews-ut, seed 1, reach" in said[0]
    assert f"delete {target_file(tmp_path)} and" in said[0]
    # A target of finished ERM runs says nothing about newer ones.
    target_file(tmp_path).unlink()
    for seed in (2, 3):
        said.clear()
        launch.train(tiny_recipe(AUTO, EASY, seed=seed), tmp_path, "cpu", None, quiet(), announce=said.append)
        assert not any("pilot" in line for line in said)


def test_erm_is_trained_before_runs_that_need_its_loss():
    def order(*changes: str) -> list[tuple[str, int]]:
        recipes = [
            tiny_recipe(*changes, objective=objective, seed=seed)
            for seed in (0, 1)
            for objective in ("constrained", "supervised", "erm")
        ]
        return [(one.settings.objective, one.settings.seed) for one in target.erm_first(recipes)]

    assert order(AUTO) == [
        *[("erm", 0), ("erm", 1)],
        *[("constrained", 0), ("supervised", 0), ("constrained", 1), ("supervised", 1)],
    ]
    assert order()[:3] == [("constrained", 0), ("supervised", 0), ("erm", 0)]


def test_a_damaged_target_is_reported_with_its_file(tmp_path):
    train_quietly(tiny_recipe(EASY, objective="erm"), tmp_path)
    train_quietly(tiny_recipe(AUTO, EASY), tmp_path)
    target_file(tmp_path).write_text("{")
    with pytest.raises(UserError, match=r"target-\w+\.json: damaged .*delete it"):
        train_quietly(tiny_recipe(AUTO, EASY, seed=1), tmp_path)


def test_runs_that_need_no_target_measure_none(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "_of_pilot", no_training)
    for loaded in (tiny_recipe(), tiny_recipe("descent.alpha={target_loss: 0.5}"), tiny_recipe(AUTO, objective="erm")):
        assert train_quietly(loaded, tmp_path).finished_info().target is None


RANKS = """
import sys
from pathlib import Path
import torch
from rich.console import Console
torch.set_num_threads(1)
from cudt.config import recipe
from cudt.training import launch
from cudt.training.display import PlainDisplay
from cudt.utils import processes

loaded = recipe.load("reviews-ut", sys.argv[2:])
launch.train(loaded, Path(sys.argv[1]), "cpu", None, PlainDisplay(Console(quiet=True)))
# As the command does: gloo's threads may abort a process that ends without it.
processes.leave()
"""


@pytest.mark.slow
def test_two_processes_train_one_pilot_and_share_its_target(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(script), str(tmp_path / "out"), *TINY, AUTO, EASY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (path,) = find_runs([tmp_path / "out"])
    info = open_run(path).finished_info()
    assert info.processes == 2
    assert info.target is not None
    assert unsealed(target_file(tmp_path / "out").read_bytes()) == info.target.model_dump()
