from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cudt.config import recipe, strict_yaml
from cudt.sweep import definition
from cudt.sweep.definition import Parameters, Sweep, as_word, setting_name
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe
from tests.sweep.searches import ALPHAS, FIXED, drawn, grid, search, seeds, sweep_of, write_search

GRID_SCORE = {"measure": "grid", "direction": "maximize"}


@pytest.mark.parametrize(
    ("name", "settings", "arms"),
    [
        ("gamma-train-dust", ["model.layers", "noise.gamma_train"], ["constrained", "erm", "erm-fair"]),
        ("cpu-video", ["model.tie_layers"], ["constrained", "supervised", "erm"]),
        ("smoke-depth", ["model.layers"], ["constrained", "erm"]),
    ],
)
def test_a_search_that_inherits_keeps_the_order_of_its_cells(name, settings, arms):
    loaded = definition.load(name).search
    assert (list(loaded.settings), list(loaded.arms)) == (settings, arms)


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
        {"reproduces": "something"},
        {"fixed": {**FIXED, "evaluation.batch_size": 7}},
        {"fixed": {**FIXED, "expect": "nothing"}},
        # A default that is spelled out, and numbers that are equal.
        {"seed": 0},
        {"arms": {"constrained": grid(ALPHAS, fixed={})}},
        {"arms": {"constrained": grid(ALPHAS, pruner=None)}},
    ],
)
def test_what_says_nothing_about_runs_or_the_score_leaves_the_identity(changes, tmp_path):
    assert sweep_of(tmp_path, **changes).identity() == sweep_of(tmp_path).identity()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"score": {"measure": "loss", "direction": "minimize"}},
        {"score": GRID_SCORE},
        {"fixed": {**FIXED, "training.epochs": 3}},
        {"recipe": "smoke-text", "fixed": None},
        {"settings": {"model.step_size": [0.25, 0.5]}},
        {"arms": {"constrained": grid({"descent.alpha": [0.1, 0.2]})}},
        {"arms": {"constrained": grid({"descent.alpha": {"low": 0.1, "high": 0.3, "step": 0.1}})}},
        {"arms": {"other": grid(ALPHAS)}},
        {"arms": {"constrained": grid(ALPHAS, fixed={"training.optimizer": "adamw"})}},
        {"arms": {"constrained": drawn("random", 3, ALPHAS)}},
        {"arms": {"constrained": grid(ALPHAS, pruner={"name": "median", "min_finished": 2})}},
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
    assert sweep_of(tmp_path, fixed={**FIXED, "evaluation.gammas": [0, 1]}).identity() == sweep_of(tmp_path).identity()


def test_a_file_of_another_name_is_another_folder(tmp_path):
    path = write_search(tmp_path)
    first = definition.load(str(path))
    other = definition.load(str(shutil.copy(path, tmp_path / "other.yaml")))
    assert first.folder(Path("out")) == Path("out/sweeps/reviews-ut") / f"mine-{first.identity()}"
    assert other.folder(Path("out")).name == f"other-{first.identity()}"
    assert re.fullmatch(r"[0-9a-f]{8}", first.identity())


# ---------------------------------------------------------------- settings, arms and cells


def test_settings_are_combined_in_the_files_order(tmp_path):
    sweep = sweep_of(tmp_path, settings={"model.step_size": [0.5, 0.25], "noise.gamma_train": [0.0, 0.8]})
    assert [setting_name(setting) for setting in sweep.settings] == [
        "model.step_size=0.5, noise.gamma_train=0.0",
        "model.step_size=0.5, noise.gamma_train=0.8",
        "model.step_size=0.25, noise.gamma_train=0.0",
        "model.step_size=0.25, noise.gamma_train=0.8",
    ]
    assert sweep_of(tmp_path).settings == [{}]
    assert setting_name({}) == ""


def test_a_grid_lists_every_combination_once(tmp_path):
    searched = {"seed": {"low": 0, "high": 4, "step": 2, "type": "int"}, "training.clip_norm": [1.0, None]}
    sweep = sweep_of(tmp_path, arms={"constrained": grid(searched)})
    assert sweep.listed("constrained") == [
        {"seed": seed, "training.clip_norm": norm} for seed in (0, 2, 4) for norm in (1.0, None)
    ]
    assert sweep.budget("constrained") == 6


def test_seeds_count_up_from_the_arms_own(tmp_path):
    sweep = sweep_of(tmp_path, arms={"recipes": seeds(3), "own": seeds(3, fixed={"seed": 7})})
    assert sweep.listed("recipes") == [{"seed": 0}, {"seed": 1}, {"seed": 2}]
    assert sweep.listed("own") == [{"seed": 7}, {"seed": 8}, {"seed": 9}]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_what_is_drawn_is_not_listed(sampler, tmp_path):
    sweep = sweep_of(tmp_path, arms={"drawn": drawn(sampler, 4)})
    assert sweep.listed("drawn") is None
    assert sweep.budget("drawn") == 4
    assert sweep.first_parameters("drawn") == {"descent.alpha": 0.0}


def test_a_cells_recipe_is_the_recipe_with_everything_that_was_set(tmp_path):
    settings = {"noise.gamma_train": [0.0, 0.8]}
    arms = {"erm": grid({"seed": [3, 4]}, fixed={"objective": "erm", "training.clip_norm": None})}
    sweep = sweep_of(tmp_path, settings=settings, arms=arms)
    found = sweep.recipe({"noise.gamma_train": 0.8}, "erm", {"seed": 4})
    by_hand = tiny_recipe("noise.gamma_train=0.8", "training.clip_norm=null", objective="erm", seed=4)
    assert found.resolved() == by_hand.resolved()
    # Nothing of this stays behind.
    assert sweep.recipe({"noise.gamma_train": 0.0}, "erm", {"seed": 3}).settings.noise.gamma_train == 0


# ---------------------------------------------------------------- words


def test_keys_are_as_short_as_they_can_be(tmp_path):
    sweep = sweep_of(tmp_path)
    shorts = {
        "descent.alpha": "alpha",
        # A seed of the data is called otherwise.
        "seed": "seed",
        "task.data_seed": "data_seed",
        # Two sections have a learning rate, and two have layers.
        "training.learning_rate": "training.learning_rate",
        "descent.dual.learning_rate": "dual.learning_rate",
        "model.layers": "model.layers",
        "model.name": "model.name",
    }
    assert {key: sweep.short(key) for key in shorts} == shorts


def test_a_cell_is_reported_in_one_line(tmp_path):
    sweep = sweep_of(tmp_path)
    parameters: Parameters = {
        "descent.alpha": 0.123456,
        "training.clip_norm": None,
        "descent.slack_restart": True,
        "seed": 12345678,
    }
    line = "step_size=0.25, constrained: alpha=0.1235, clip_norm=null, slack_restart=true, seed=12345678"
    assert sweep.describe({"model.step_size": 0.25}, "constrained", parameters) == line
    assert sweep.describe({}, "erm", {}) == "erm"


@pytest.mark.parametrize(
    ("value", "word"), [(True, "true"), (None, "null"), (1e-05, "1e-05"), ("adam", "adam"), (3, "3")]
)
def test_a_word_is_as_a_recipe_spells_it(value, word):
    assert as_word(value) == word
    assert strict_yaml.parse(as_word(value), "word") == value


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
            "grid": grid({"seed": {"low": 1, "high": 2, "type": "int"}, "descent.slack_restart": [True, False]}),
        },
    )
    again = kept(sweep, tmp_path / "kept")
    assert (again.name, again.identity(), again.folder(Path())) == (sweep.name, sweep.identity(), sweep.folder(Path()))
    assert all_recipes(again) == all_recipes(sweep)
    assert [again.budget(name) for name in again.search.arms] == [4, 4, 4]
    # Written again, it is the same to the letter.
    assert (again.text(), again.base_text()) == (sweep.text(), sweep.base_text())


def test_what_a_sweep_keeps_is_the_recipe_as_it_was_then(tmp_path):
    own = tmp_path / "own.yaml"
    shutil.copy(recipe.locate("reviews-ut"), own)
    sweep = sweep_of(tmp_path, recipe="own.yaml")
    found = kept(sweep, tmp_path / "kept")
    own.unlink()
    assert definition.load(str(tmp_path / "kept" / "sweep.yaml")).folder(Path()) == sweep.folder(Path())
    assert found.recipe_name == "own"
    # Fixed settings stay in the search file; they are not written into the recipe.
    assert found.base == recipe.read(recipe.locate("reviews-ut"))
    assert found.values != found.base


def test_a_search_file_of_any_name_can_be_kept(tmp_path):
    path = write_search(tmp_path).rename(tmp_path / "my search (2).yaml")
    sweep = definition.load(str(path))
    assert sweep.name == "my-search-2"
    assert kept(sweep, tmp_path / "kept").folder(Path()) == sweep.folder(Path())


# ---------------------------------------------------------------- recipes that are not whole alone


def unfinished(folder: Path) -> str:
    """A recipe without the price of its resilience, which the search has to say."""
    values = recipe.read(recipe.locate("reviews-ut"))
    values["descent"] = {"resilience": "slack"}
    (folder / "own.yaml").write_text(strict_yaml.dump(values), encoding="utf-8")
    return "own.yaml"


def test_a_recipe_may_be_whole_only_with_what_an_arm_says(tmp_path):
    arms = {"one": grid({"descent.beta": [1.0, 2.0]}), "two": seeds(2, fixed={"descent.beta": 5.0})}
    sweep = sweep_of(tmp_path, recipe=unfinished(tmp_path), score=GRID_SCORE, arms=arms)
    assert sweep.gammas == [0.0, 0.5, 1.0]
    assert sweep.short("descent.beta") == "beta"
    assert sweep.recipe({}, "one", {"descent.beta": 2.0}).settings.descent.beta == 2
    assert kept(sweep, tmp_path / "kept").identity() == sweep.identity()


def test_a_recipe_that_no_arm_completes_is_reported_as_the_recipe(tmp_path):
    with pytest.raises(UserError, match=r"^search mine: recipe own: descent: resilience: slack needs beta"):
        sweep_of(tmp_path, recipe=unfinished(tmp_path), arms={"one": seeds(2), "two": seeds(2, fixed={"seed": 7})})


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.yaml", "search file 'gone.yaml' does not exist"),
        ("no/such", "search file 'no/such' does not exist"),
        ("smoke-alfa", "no search is called 'smoke-alfa'; did you mean 'smoke-alpha'?"),
        ("zzz", "no search is called 'zzz'; `cudt recipes` lists all"),
    ],
)
def test_an_unknown_search_is_reported(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        definition.load(name)
    assert str(error.value).startswith(message)


def test_a_file_without_a_recipe_says_where_to_name_one(tmp_path):
    with pytest.raises(
        UserError, match=r"^search mine: recipe: missing; name one in the search file, or with --recipe$"
    ):
        sweep_of(tmp_path, recipe=None)


def test_a_file_without_a_recipe_has_its_other_errors_reported_too(tmp_path):
    with pytest.raises(UserError, match="empty range"):
        sweep_of(tmp_path, recipe=None, arms={"drawn": drawn("tpe", 3, {"descent.alpha": {"low": 1, "high": 0}})})


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("review-ut", "recipe: no recipe is called 'review-ut'; did you mean 'reviews-ut'?"),
        ("gone.yaml", "recipe: recipe file 'gone.yaml' does not exist"),
        ("broken.yaml", "duplicate key 'seed'; remove one"),
    ],
)
def test_a_recipe_that_is_not_there_is_reported_with_the_other_mistakes(named, message, tmp_path):
    (tmp_path / "broken.yaml").write_text("seed: 1\nseed: 2\n")
    with pytest.raises(UserError) as error:
        sweep_of(tmp_path, recipe=named, scores=3, arms={"drawn": drawn("tpe", 3, {"seed": {"low": 1, "high": 0}})})
    assert str(error.value).startswith("search mine: 3 errors\n")
    for part in (message, "scores: unknown key", "empty range"):
        assert str(error.value).count(part) == 1, part


def test_a_recipe_that_is_asked_for_and_not_there_is_reported_as_such(tmp_path):
    with pytest.raises(UserError, match=r"^search mine: --recipe: no recipe is called 'review-ut'; did you mean"):
        definition.load(str(write_search(tmp_path)), "review-ut")


def test_a_key_that_is_listed_twice_is_reported_with_its_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(strict_yaml.dump(search()) + "seed: 1\nseed: 2\n")
    with pytest.raises(UserError, match=r"mine\.yaml:\d+: duplicate key 'seed'; remove one"):
        definition.load(str(path))
