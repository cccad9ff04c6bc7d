from __future__ import annotations

import itertools

import pytest

from cudt.runs.run import Run, run_for
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe, train_quietly


def test_a_recipe_that_does_not_fit_its_model_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match="expected one rate, or 3 rates"):
        train_quietly(tiny_recipe("descent.alpha=[0.1]"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_run_json_says_what_was_run_and_where(trained_run):
    info = trained_run.finished_info()
    assert info.status == "finished"
    assert (info.recipe, info.objective, info.seed) == ("reviews-ut", "constrained", 0)
    assert info.task_version == 1
    assert info.layers == 3
    assert info.device == "cpu"
    assert {"cudt", "python", "torch", "cooper-optim"} <= set(info.versions)
    assert info.variant == trained_run.recipe.identity(without_seed=True)
    assert len(info.verdicts) == 3


def test_a_damaged_checkpoint_is_reported(tmp_path):
    recipe = tiny_recipe()
    run = run_for(recipe, tmp_path)
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / "checkpoint-3.json").write_text("junk")
    with pytest.raises(
        UserError,
        match=r"checkpoint-3.json: damaged .*delete .*checkpoints to train from the beginning",
    ):
        train_quietly(recipe, tmp_path)


def test_a_run_that_another_process_works_on_is_refused(tmp_path):
    recipe = tiny_recipe()
    run = run_for(recipe, tmp_path)
    with run.locked(), pytest.raises(UserError, match="another process is using this run"):
        train_quietly(recipe, tmp_path)


def files(run: Run) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


def test_a_finished_run_has_no_checkpoint_and_each_of_its_weights_once(tmp_path, monkeypatch):
    ranks = itertools.count(0, -1)
    monkeypatch.setattr("cudt.method.objectives.Constrained.rank", lambda *_: [float(next(ranks))])
    run = train_quietly(tiny_recipe(), tmp_path)
    assert files(run) == ["best.safetensors", "last.safetensors"]
    # The last of its epochs is the best.
    assert run.weights_file("best").samefile(run.weights_file("last"))


def test_another_choice_of_what_is_kept_applies_to_a_finished_run(tmp_path):
    run = train_quietly(tiny_recipe(), tmp_path)
    # As a process that was killed leaves it.
    for name in (
        "checkpoint-9.json",
        "checkpoint-9.safetensors",
        "step-9.safetensors",
        ".step-9.x",
        "..best.x",
    ):
        (run.checkpoints / name).write_text("")
    for keep, kept in (
        ("both", ["best.safetensors", "last.safetensors"]),
        ("best", ["best.safetensors"]),
    ):
        assert train_quietly(tiny_recipe(f"checkpoints.keep={keep}"), tmp_path).path == run.path
        assert files(run) == kept
    train_quietly(tiny_recipe("checkpoints.keep=none-when-finished"), tmp_path)
    assert files(run) == []
