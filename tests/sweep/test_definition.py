from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cudt.config import recipe, yaml
from cudt.sweep import definition
from cudt.sweep.definition import Sweep, setting_name
from tests.conftest import tiny_recipe
from tests.sweep.searches import ALPHAS, FIXED, drawn, grid, seeds, sweep_of, write_search

GRID_SCORE = {"measure": "grid", "direction": "maximize"}


@pytest.mark.parametrize(
    "arms",
    [{"drawn": drawn("tpe", 5)}, {"drawn": drawn("random", 5)}, {"erm": seeds(5)}],
    ids=["tpe", "random", "seeds"],
)
def test_a_larger_budget_is_the_same_sweep(arms, tmp_path):
    ((name, arm),) = arms.items()
    larger = {name: {**arm, "budget": 50}}
    assert sweep_of(tmp_path, arms=arms).identity() == sweep_of(tmp_path, arms=larger).identity()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"score": GRID_SCORE},
        {"recipe": "smoke-text", "fixed": None},
        {"arms": {"constrained": grid({"descent.alpha": [0.1, 0.2]})}},
        {"arms": {"other": grid(ALPHAS)}},
        {"arms": {"constrained": drawn("random", 3, ALPHAS)}},
        {"arms": {"constrained": grid(ALPHAS), "erm": seeds(3, fixed={"objective": "erm"})}},
    ],
)
def test_whatever_else_changes_is_another_sweep(changes, tmp_path):
    assert sweep_of(tmp_path, **changes).identity() != sweep_of(tmp_path).identity()


def test_the_levels_of_the_score_are_part_of_it_wherever_they_are_written(tmp_path):
    from_recipe = sweep_of(tmp_path, score=GRID_SCORE)
    assert from_recipe.gammas == [0.0, 0.5, 1.0]
    spelled = sweep_of(tmp_path, score={**GRID_SCORE, "gammas": "0:1:0.5"})
    assert spelled.identity() == from_recipe.identity()
    other = sweep_of(tmp_path, score=GRID_SCORE, fixed={**FIXED, "evaluation.gammas": [0, 1]})
    assert other.gammas == [0.0, 1.0]
    assert other.identity() != from_recipe.identity()
    assert (
        sweep_of(tmp_path, fixed={**FIXED, "evaluation.gammas": [0, 1]}).identity()
        == sweep_of(tmp_path).identity()
    )


# ---------------------------------------------------------------- settings, arms and cells


def test_settings_are_combined_in_the_files_order(tmp_path):
    sweep = sweep_of(
        tmp_path, settings={"model.step_size": [0.5, 0.25], "noise.gamma_train": [0.0, 0.8]}
    )
    assert [setting_name(setting) for setting in sweep.settings] == [
        "model.step_size=0.5, noise.gamma_train=0.0",
        "model.step_size=0.5, noise.gamma_train=0.8",
        "model.step_size=0.25, noise.gamma_train=0.0",
        "model.step_size=0.25, noise.gamma_train=0.8",
    ]
    assert sweep_of(tmp_path).settings == [{}]
    assert setting_name({}) == ""


def test_a_grid_lists_every_combination_once(tmp_path):
    searched = {
        "seed": {"low": 0, "high": 4, "step": 2, "type": "int"},
        "training.clip_norm": [1.0, None],
    }
    sweep = sweep_of(tmp_path, arms={"constrained": grid(searched)})
    assert sweep.listed("constrained") == [
        {"seed": seed, "training.clip_norm": norm} for seed in (0, 2, 4) for norm in (1.0, None)
    ]
    assert sweep.budget("constrained") == 6


def test_seeds_count_up_from_the_arms_own(tmp_path):
    sweep = sweep_of(tmp_path, arms={"recipes": seeds(3), "own": seeds(3, fixed={"seed": 7})})
    assert sweep.listed("recipes") == [{"seed": 0}, {"seed": 1}, {"seed": 2}]
    assert sweep.listed("own") == [{"seed": 7}, {"seed": 8}, {"seed": 9}]


def test_a_cells_recipe_is_the_recipe_with_everything_that_was_set(tmp_path):
    settings = {"noise.gamma_train": [0.0, 0.8]}
    arms = {"erm": grid({"seed": [3, 4]}, fixed={"objective": "erm", "training.clip_norm": None})}
    sweep = sweep_of(tmp_path, settings=settings, arms=arms)
    found = sweep.recipe({"noise.gamma_train": 0.8}, "erm", {"seed": 4})
    by_hand = tiny_recipe(
        "noise.gamma_train=0.8", "training.clip_norm=null", objective="erm", seed=4
    )
    assert found.resolved() == by_hand.resolved()
    # Nothing of this stays behind.
    assert (
        sweep.recipe({"noise.gamma_train": 0.0}, "erm", {"seed": 3}).settings.noise.gamma_train == 0
    )


# ---------------------------------------------------------------- files


def kept(sweep: Sweep, folder: Path) -> Sweep:
    """The sweep that is read from the two files which a sweep leaves in its folder."""
    folder.mkdir()
    (folder / "sweep.yaml").write_text(sweep.text(), encoding="utf-8")
    (folder / "base.yaml").write_text(sweep.base_text(), encoding="utf-8")
    return definition.load(str(folder / "sweep.yaml"))


def all_recipes(sweep: Sweep) -> list[dict[str, Any]]:
    cells = [(setting, arm) for setting in sweep.settings for arm in sweep.search.arms]
    return [
        sweep.recipe(setting, arm, parameters).resolved()
        for setting, arm in cells
        for parameters in (sweep.listed(arm) or [sweep.first_parameters(arm)])
    ]


def test_what_a_sweep_keeps_of_itself_is_the_same_sweep_wherever_it_is(tmp_path):
    sweep = sweep_of(
        tmp_path,
        score=GRID_SCORE,
        settings={"noise.gamma_train": [0.0, 0.8], "training.clip_norm": [1.0, None]},
        arms={
            "drawn": drawn("tpe", 4),
            "erm": seeds(4, fixed={"objective": "erm"}),
            "grid": grid(
                {
                    "seed": {"low": 1, "high": 2, "type": "int"},
                    "descent.slack_restart": [True, False],
                }
            ),
        },
    )
    again = kept(sweep, tmp_path / "kept")
    assert (again.name, again.identity(), again.folder(Path())) == (
        sweep.name,
        sweep.identity(),
        sweep.folder(Path()),
    )
    assert all_recipes(again) == all_recipes(sweep)
    assert [again.budget(name) for name in again.search.arms] == [4, 4, 4]
    # Written again, it is the same to the letter.
    assert (again.text(), again.base_text()) == (sweep.text(), sweep.base_text())


# ---------------------------------------------------------------- recipes that are not whole alone


def unfinished(folder: Path) -> str:
    """A recipe without the price of its resilience, which the search has to say."""
    values = recipe.read(recipe.locate("reviews-ut"))
    values["descent"] = {"resilience": "slack"}
    (folder / "own.yaml").write_text(yaml.dump(values), encoding="utf-8")
    return "own.yaml"


def test_a_recipe_may_be_whole_only_with_what_an_arm_says(tmp_path):
    arms = {"one": grid({"descent.beta": [1.0, 2.0]}), "two": seeds(2, fixed={"descent.beta": 5.0})}
    sweep = sweep_of(tmp_path, recipe=unfinished(tmp_path), score=GRID_SCORE, arms=arms)
    assert sweep.gammas == [0.0, 0.5, 1.0]
    assert sweep.short("descent.beta") == "beta"
    assert sweep.recipe({}, "one", {"descent.beta": 2.0}).settings.descent.beta == 2
    assert kept(sweep, tmp_path / "kept").identity() == sweep.identity()


# ---------------------------------------------------------------- where files are


def test_a_recipe_may_stand_next_to_the_search_file_wherever_we_are(tmp_path, monkeypatch):
    shutil.copy(recipe.locate("reviews-ut"), tmp_path / "own.yaml")
    path = write_search(tmp_path, recipe="own.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert definition.load(str(path)).recipe_name == "own"


def test_a_recipe_that_is_asked_for_goes_before_the_files_own(tmp_path):
    shutil.copy(recipe.locate("reviews-ut"), tmp_path / "own.yaml")
    asked = str(tmp_path / "own.yaml")
    assert definition.load(str(write_search(tmp_path)), asked).recipe_name == "own"
    assert definition.load(str(write_search(tmp_path, recipe=None)), asked).recipe_name == "own"
