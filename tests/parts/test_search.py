"""The search file: what it may say, what is refused, and the recipes it leads to."""

from __future__ import annotations

from typing import Any

import pytest

from cudt.config import recipe as recipes
from cudt.config import yaml
from cudt.sweep import search
from cudt.utils.errors import UserError
from tests.sweeps import ALPHA, ALPHAS, ERM, drawn, grid, seeds, sweep_of, write_search


def refusal(folder, **changes: Any) -> str:
    with pytest.raises(UserError) as error:
        sweep_of(folder, **{"fixed": None, **changes})
    return str(error.value)


KINDS = {
    "training.clip_norm": [1.0, None],
    "descent.dual.optimizer": ["adam", "sgd"],
    "descent.slack_restart": [True, False],
}


@pytest.mark.parametrize(
    "arm",
    [
        grid(KINDS),
        grid({**ALPHAS, "objective": ["erm", "constrained"]}),
        # Neither would be taken without the other.
        grid({"descent.beta": [1.0, 9.0]}, fixed={"descent.resilience": "slack"}),
        drawn("tpe", 5, pruner="halving"),
    ],
)
def test_a_valid_arm_is_taken(arm, tmp_path):
    assert sweep_of(tmp_path, fixed=None, arms={"one": arm}).first_recipe


def test_the_searches_that_come_with_cudt_are_valid():
    for name in recipes.names("search"):
        assert search.load(name).search.reproduces.strip()


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (grid(ALPHA), "list its values"),
        (grid(ALPHAS, budget=4), "a grid has none"),
        ({"sampler": "random", "search": ALPHA}, "budget is missing"),
        ({"sampler": "tpe", "budget": 3}, "settings to search"),
        (seeds(3, search=ALPHAS), "settings to search"),
        (drawn("tpe", 3, {"descent.alpha": {"low": 0.5, "high": 0.1}}), "low <= high"),
        (drawn("tpe", 3, {"descent.alpha": {"low": 0.1, "hihg": 2}}), "did you mean 'high'?"),
    ],
)
def test_an_arm_that_cannot_be_run_is_refused(arm, said, tmp_path):
    refused = refusal(tmp_path, arms={"one": arm})
    assert "arms.one" in refused
    assert said in refused


def test_budgets_are_equal_and_a_key_is_set_in_one_place(tmp_path):
    arms = {"constrained": grid(ALPHAS), "erm": seeds(5, fixed=ERM)}
    assert "constrained 3, erm 5 runs" in refusal(tmp_path, arms=arms)
    arms = {"one": grid(ALPHAS, fixed={"descent.alpha": 0.1, "model.width": 8})}
    said = refusal(tmp_path, arms=arms, settings={"model.width": [8, 16]})
    assert "arms.one: descent.alpha, model.width is set in two places" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arms": {"a": drawn("tpe", 3, {"descent.alpha": {"low": 0.1, "high": 1.5}})}}, "alpha"),
        ({"arms": {"a": grid({"training.epochs": [1, 2, "three"]})}}, "training.epochs"),
        ({"settings": {"model.layers": [3, -1]}}, "model.layers"),
        ({"arms": {"a": seeds(3, fixed={"no.such": 1})}}, "no: unknown key"),
        ({"arms": {"a": grid({"evaluation.gammas": ["0,1", "0,2"]})}}, "does not affect training"),
        ({"arms": {"a": grid(ALPHAS, fixed=ERM)}}, "does not affect training"),
        ({"recipe": None}, "recipe: missing"),
    ],
)
def test_every_choice_and_both_ends_are_tried_with_the_recipe(changes, said, tmp_path):
    assert said in refusal(tmp_path, **changes)


def test_a_sweep_is_settings_times_arms_with_the_recipes_of_train(tmp_path):
    sweep = sweep_of(
        tmp_path,
        settings={"training.learning_rate": [0.1, 0.2], "noise.gamma_train": [0.0, 0.8]},
        arms={"constrained": grid(ALPHAS), "erm": seeds(3, fixed=ERM)},
    )
    assert len(sweep.settings) == 4
    settings = sweep.recipe(sweep.settings[3], "constrained", {"descent.alpha": 0.2}).settings
    assert (settings.training.learning_rate, settings.noise.gamma_train) == (0.2, 0.8)
    assert (settings.descent.alpha, settings.training.epochs) == (0.2, 2)
    assert search.label(sweep.settings[1], "erm", {"seed": 2}) == (
        "training.learning_rate=0.1, noise.gamma_train=0.8, erm: seed=2"
    )


def test_a_larger_budget_is_the_same_sweep_and_anything_else_another(tmp_path):
    first = sweep_of(tmp_path, arms={"erm": seeds(2, fixed=ERM)})
    same = {"arms": {"erm": seeds(9, fixed=ERM)}, "reproduces": "x"}
    assert sweep_of(tmp_path, **same).identity() == first.identity()
    others: list[dict[str, Any]] = [
        {"arms": {"erm": seeds(2)}},
        {"arms": {"erm": seeds(2, fixed=ERM)}, "seed": 1},
        {"arms": {"erm": seeds(2, fixed=ERM)}, "recipe": "smoke-text", "fixed": None},
    ]
    assert len({first.identity(), *(sweep_of(tmp_path, **one).identity() for one in others)}) == 4


def test_a_sweep_comes_back_from_its_own_files(tmp_path):
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]})
    for name, text in sweep.texts().items():
        (tmp_path / name).write_text(text)
    again = search.load(str(tmp_path / "sweep.yaml"))
    assert (again.name, again.identity()) == (sweep.name, sweep.identity())
    assert search.from_texts(sweep.texts()).first_recipe == sweep.first_recipe


def test_a_recipe_is_named_by_the_file_or_given(tmp_path):
    assert search.load(str(write_search(tmp_path, recipe=None)), "reviews-ut").recipe_name
    (tmp_path / "own.yaml").write_text(yaml.dump({"base": "reviews-ut", "name": "mine"}))
    assert sweep_of(tmp_path, recipe="own.yaml").recipe_name == "mine"
