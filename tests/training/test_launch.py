from __future__ import annotations

import pytest

from cudt.runs.find import run_for
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


def test_the_folder_is_named_by_recipe_objective_and_identity(trained_run):
    assert trained_run.path.name == f"constrained-{trained_run.recipe.identity()}"
    assert trained_run.path.parent.name == "reviews-ut"


def test_a_damaged_checkpoint_is_reported(tmp_path):
    recipe = tiny_recipe()
    run = run_for(recipe, tmp_path)
    run.last_checkpoint.parent.mkdir(parents=True)
    run.last_checkpoint.write_text("junk")
    with pytest.raises(UserError, match=r"damaged .* delete it to train from the beginning"):
        train_quietly(recipe, tmp_path)


def test_a_run_that_another_process_works_on_is_refused(tmp_path):
    recipe = tiny_recipe()
    run = run_for(recipe, tmp_path)
    with run.locked(), pytest.raises(UserError, match="another process is using this run"):
        train_quietly(recipe, tmp_path)
