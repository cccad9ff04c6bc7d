"""The search file: what it may say, what is refused, and the recipes it leads to."""

from __future__ import annotations

from typing import Any

import pytest

from cudt.config import yaml
from cudt.sweep import definition
from cudt.sweep.search import Range
from cudt.utils.errors import UserError
from tests.sweeps import ALPHA, ALPHAS, drawn, grid, seeds, sweep_of, write_search

ERM = {"objective": "erm"}


def problems(folder, **changes: Any) -> list[str]:
    """The errors of a search file, one per line; none if it is valid."""
    try:
        sweep_of(folder, **{"fixed": None, **changes})
    except UserError as error:
        first, *more = str(error).splitlines()
        return [line.strip() for line in more] or [first.removeprefix("search mine: ")]
    return []


SOUND: dict[str, dict[str, Any]] = {
    "unequal budgets with a reason": {
        "arms": {"constrained": grid(ALPHAS), "erm": seeds(5, fixed=ERM)},
        "unequal_budgets": "a grid of three has no smaller size",
    },
    "choices of every kind": {
        "arms": {
            "constrained": grid(
                {
                    "training.clip_norm": [1.0, None],
                    "descent.dual.optimizer": ["adam", "sgd"],
                    "descent.slack_restart": [True, False],
                }
            )
        },
    },
    "settings that are compared": {
        "settings": {"model.width": [16, 32], "noise.gamma_train": [0.0, 0.8]},
        "arms": {"constrained": drawn("tpe", 5), "erm": seeds(5, fixed=ERM)},
    },
    # Neither would be taken without the other.
    "settings that need each other": {
        "arms": {"one": grid({"descent.beta": [1.0, 9.0]}, fixed={"descent.resilience": "slack"})}
    },
    "a pruner by name": {"arms": {"one": drawn("tpe", 5, pruner="halving")}},
    "an arm that searches the objective": {
        "arms": {"one": grid({**ALPHAS, "objective": ["erm", "constrained"]})}
    },
    "the form of the constraints, which every objective has": {
        "arms": {"erm": grid({"descent.form": ["linear", "log"]}, fixed=ERM)}
    },
    "every draw that there is": {"arms": {"one": drawn("random", 3, ALPHAS)}},
}


@pytest.mark.parametrize("changes", SOUND.values(), ids=SOUND)
def test_a_valid_file_is_taken(changes, tmp_path):
    assert problems(tmp_path, **changes) == []


def test_the_searches_that_come_with_cudt_are_valid():
    for name in definition.names():
        assert definition.load(name).search.reproduces.strip()


@pytest.mark.parametrize(
    ("arm", "line"),
    [
        (grid(ALPHA), "search: a grid cannot have a continuous range"),
        (grid(ALPHAS, budget=4), "budget: expected 3, the size of the grid"),
        (drawn("tpe", 4, ALPHAS), "budget: expected at most 3, the number of combinations"),
        ({"sampler": "random", "search": ALPHA}, "budget: missing"),
        ({"sampler": "tpe", "budget": 3}, "search: missing"),
        (seeds(3, search=ALPHAS), "search: sampler seeds varies only the seed"),
        (drawn("tpe", 3, {"training.epochs": [1, 2, 3]}, pruner="median"), "pruner: compares runs"),
        (grid({**ALPHAS, "descent.form": ["log", "log"]}), "search.descent.form: 'log' is listed"),
    ],
)
def test_an_arm_that_cannot_be_run_is_refused(arm, line, tmp_path):
    (found,) = problems(tmp_path, arms={"one": arm})
    assert found.startswith(f"arms.one.{line}")


@pytest.mark.parametrize(
    ("searched", "line"),
    [
        ({"low": 0.5, "high": 0.1}, "low (0.5) must be below high (0.1)"),
        ({"low": 0.0, "high": 0.1, "log": True}, "`low > 0` must hold"),
        ({"low": 0.1, "high": 0.2, "log": True, "step": 0.1}, "The parameter `step` is not suppo"),
        ({"low": 0.1, "high": 2, "type": "int"}, "type int: low, high and step must be integers"),
        ({"low": 0.1, "hihg": 2}, "unknown key; did you mean 'high'?"),
        (0.5, "must be a valid list"),
    ],
)
def test_a_range_that_nothing_can_be_drawn_from_is_refused(searched, line, tmp_path):
    found = problems(tmp_path, arms={"one": grid({"descent.alpha": searched})})
    assert any(line in one for one in found), found


def test_equal_budgets_are_asked_for(tmp_path):
    arms = {"constrained": grid(ALPHAS), "erm": seeds(5, fixed=ERM)}
    (found,) = problems(tmp_path, arms=arms)
    assert found.startswith("arms: unequal budgets (constrained 3, erm 5 runs)")
    arms["erm"] = seeds(3, fixed=ERM)
    (found,) = problems(tmp_path, arms=arms, unequal_budgets="why not")
    assert found == "unequal_budgets: the budgets are equal; remove this key"


def test_a_key_has_one_place(tmp_path):
    arms = {"one": grid(ALPHAS, fixed={"descent.alpha": 0.1, "model.width": 8})}
    found = problems(
        tmp_path, arms=arms, fixed={"descent.alpha": 0.2}, settings={"model.width": [8, 16]}
    )
    assert found == [
        "arms.one.search.descent.alpha: also set in fixed; remove one of them",
        "arms.one.search.descent.alpha: also set in arms.one.fixed; remove one of them",
        "arms.one.fixed.model.width: also set in settings; remove one of them",
    ]


def test_every_choice_and_both_ends_are_checked_against_the_recipe(tmp_path):
    searched = {"descent.alpha": {"low": 0.1, "high": 1.5}, "training.epochs": [1, 0, "three"]}
    arms = {"one": drawn("random", 3, searched), "erm": seeds(3, fixed={"no.such": 1})}
    found = problems(tmp_path, arms=arms, settings={"model.layers": [3, -1]})
    assert [line.partition(":")[0] for line in found] == [*["arms.one"] * 3, "settings", "arms.erm"]
    keys = [line.split(": ")[1] for line in found]
    assert keys == ["descent.alpha", "training.epochs", "training.epochs", "model.layers", "no"]


def test_what_would_train_the_same_run_again_is_refused(tmp_path):
    searched = {"descent.alpha": [0.1, 0.2], "evaluation.gammas": ["0,1", "0,2"]}
    found = problems(tmp_path, arms={"erm": grid(searched, fixed=ERM)})
    assert found == [
        "arms.erm.search.descent.alpha: ignored by objective erm; its runs would be the same",
        "arms.erm.search.evaluation.gammas: does not affect training; its runs would be the same",
    ]


def test_values_of_a_range_are_as_they_are_written():
    assert Range(low=0.1, high=0.4, step=0.05).values() == [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    assert Range(low=1, high=8, step=3, type="int").values() == [1, 4, 7]
    assert Range(low=0, high=1).count == float("inf")


def test_a_sweep_is_settings_times_arms_with_the_recipes_of_train(tmp_path):
    sweep = sweep_of(
        tmp_path,
        settings={"training.learning_rate": [0.1, 0.2], "noise.gamma_train": [0.0, 0.8]},
        arms={"constrained": grid(ALPHAS), "erm": seeds(3, fixed=ERM)},
    )
    assert len(sweep.settings) == 4
    recipe = sweep.recipe(sweep.settings[3], "constrained", {"descent.alpha": 0.2})
    settings = recipe.settings
    assert (settings.training.learning_rate, settings.noise.gamma_train) == (0.2, 0.8)
    assert (settings.descent.alpha, settings.training.epochs) == (0.2, 2)
    assert sweep.describe(sweep.settings[1], "erm", {"seed": 2}) == (
        "training.learning_rate=0.1, noise.gamma_train=0.8, erm: seed=2"
    )


def test_a_larger_budget_is_the_same_sweep_and_anything_else_another(tmp_path):
    first = sweep_of(tmp_path, arms={"erm": seeds(2, fixed=ERM)})
    same = {"arms": {"erm": seeds(9, fixed=ERM)}, "reproduces": "x", "unequal_budgets": None}
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
    again = definition.load(str(tmp_path / "sweep.yaml"))
    assert (again.name, again.identity()) == (sweep.name, sweep.identity())
    stored = definition.from_texts(sweep.texts())
    assert stored.recipe({}, "constrained", {"descent.alpha": 0.3}) == sweep.recipe(
        {}, "constrained", {"descent.alpha": 0.3}
    )


def test_a_file_without_a_recipe_or_with_one_that_is_none_is_refused(tmp_path):
    assert problems(tmp_path, recipe=None) == [
        "recipe: missing; name one in the search file, or with --recipe"
    ]
    (found,) = problems(tmp_path, recipe="reviews-tu")
    assert found == "recipe: no recipe is called 'reviews-tu'; did you mean 'reviews-ut'?"
    loaded = definition.load(str(write_search(tmp_path, recipe=None)), "reviews-ut")
    assert loaded.recipe_name == "reviews-ut"
    (tmp_path / "own.yaml").write_text(yaml.dump({"base": "reviews-ut", "name": "mine"}))
    assert sweep_of(tmp_path, recipe="own.yaml").recipe_name == "mine"
