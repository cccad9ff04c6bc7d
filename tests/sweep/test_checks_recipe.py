from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from cudt.config import strict_yaml
from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives.base import make_objective
from cudt.sweep import checks_recipe, definition
from tests.sweep.searches import ALPHAS, drawn, grid, search, seeds, write_search

RATE = "descent.dual.learning_rate"
GRID_SCORE = {"measure": "grid", "direction": "maximize"}
REVERSED = {"low": 0.5, "high": 0.1}
FROM_ZERO = {"low": 0, "high": 0.1, "log": True}


# ---------------------------------------------------------------- what the recipe says to it


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"fixed": {"training.epoch": 3}}, ["fixed", "training.epoch: unknown key; did you mean 'epochs'?"]),
        ({"fixed": {"seed.x": 3}}, ["fixed", "'seed' is a value, not a section; it has no key 'x'"]),
        ({"settings": {"model.layer": [2, 3]}}, ["model.layer: unknown key; did you mean 'layers'?"]),
        (
            {"settings": {"model.width": [16, 0, 32]}},
            ["settings", "model.width: expected a positive integer or null, got 0"],
        ),
        (
            {"arms": {"constrained": grid(ALPHAS, fixed={"objective": "constrain"})}},
            ["arms.constrained", "objective: unknown objective 'constrain'; did you mean 'constrained'?"],
        ),
        (
            {"arms": {"constrained": grid({"descent.alpa": [0.1, 0.2, 0.3]})}},
            ["arms.constrained", "descent.alpa: unknown key; did you mean 'alpha'?"],
        ),
        (
            {"arms": {"constrained": grid({"descent.alpha": [0.1, 1.5, 0.2]})}},
            ["arms.constrained", "descent.alpha: expected a number ≥ 0 and < 1", "got 1.5"],
        ),
        (
            {"arms": {"drawn": drawn("random", 3, {"training.epochs": {"low": 1, "high": 3}})}},
            ["arms.drawn", "training.epochs: expected a positive integer, got 1.0", "give the range type: int"],
        ),
        (
            {"arms": {"constrained": grid({"evaluation.batch_size": [8, 16]})}},
            ["arms.constrained", "evaluation.batch_size", "does not affect training"],
        ),
        (
            {"settings": {"evaluation.batch_size": [8, 16]}},
            ["settings", "evaluation.batch_size", "does not affect training"],
        ),
        (
            {"arms": {"erm": grid(ALPHAS, fixed={"objective": "erm"})}},
            ["arms.erm.search.descent.alpha: ignored by objective erm"],
        ),
    ],
)
def test_what_the_recipe_refuses_is_reported_once_and_before_anything_is_run(changes, parts, errors_of):
    (line,) = errors_of(**changes)
    for part in parts:
        assert part in line


@pytest.mark.parametrize("searched", [[0.1, 1.5], {"low": 0.1, "high": 1.5}], ids=["of two choices", "of two ends"])
def test_one_that_is_refused_does_not_make_the_other_say_nothing(searched, errors_of):
    (line,) = errors_of(arms={"drawn": drawn("random", 2, {"descent.alpha": searched})})
    assert re.search(r"descent\.alpha: .*got 1\.5$", line)


def test_the_same_mistake_in_two_arms_is_reported_of_both(errors_of):
    lines = errors_of(arms={"one": grid({"descent.alpa": [0.1, 0.2]}), "two": grid({"descent.alpa": [0.3, 0.4]})})
    assert [line.split(":")[0] for line in lines] == ["arms.one", "arms.two"]


def test_everything_that_cannot_be_set_is_reported(errors_of):
    assert errors_of(fixed={"seed.x": 3, "task.train.y": 4}) == [
        "fixed: seed.x: 'seed' is a value, not a section; it has no key 'x'",
        "fixed: task.train.y: 'train' is a value, not a section; it has no key 'y'",
    ]
    clash = "'seed' is a value, not a section; it has no key 'x'"
    lines = errors_of(arms={"constrained": grid(ALPHAS, fixed={"seed.x": 3, "seed.x.z": 4})})
    assert lines[0] == f"arms.constrained: seed.x: {clash}"
    assert len(lines) == 2


def test_a_mistake_in_a_setting_is_reported_once_whatever_arms_there_are(errors_of):
    arms = {"constrained": grid(ALPHAS), "erm": seeds(3, fixed={"objective": "erm"})}
    (line,) = errors_of(settings={"model.layer": [2, 3]}, arms=arms)
    assert line == "settings: model.layer: unknown key; did you mean 'layers'?"


# ---------------------------------------------------------------- what an objective looks at


RESILIENT = {"descent.resilience": "decay"}
#: Of each setting: two choices, what they need, and what the second of them changes.
DESCENT: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "alpha": ([0.1, 0.3], {}, {"alpha": 0.3}),
    "reference": ([1.0, 2.0], {}, {"reference": 2.0}),
    "form": (["linear", "log"], {}, {"form": "log"}),
    "resilience": (["slack", "decay"], {"descent.beta": 1.0}, {"resilience": "decay", "beta": 1.0}),
    "beta": ([1.0, 2.0], RESILIENT, {"resilience": "decay", "beta": 2.0}),
    "dual.learning_rate": ([0.1, 1.0], {}, {"dual": Dual(learning_rate=1.0)}),
}


def weights(objective: Any, **changes: Any) -> list[list[float]]:
    """What each layer counts in three updates: all that training has of an objective."""
    of = make_objective(objective, LayerwiseDescent(3, **{"alpha": 0.1, "reference": 1.0, **changes}))
    f = torch.tensor([3.0, 2.0, 1.5])
    found = []
    for _ in range(3):
        found.append(of.gradient(f).tolist())
        of.dual_step(f)
    return found


@pytest.mark.parametrize("key", DESCENT)
@pytest.mark.parametrize("objective", ["erm", "supervised", "constrained"])
def test_what_is_refused_of_an_objective_is_what_it_does_not_look_at(objective, key, errors_of):
    choices, needed, changes = DESCENT[key]
    line = f"arms.other.search.descent.{key}: ignored by objective {objective}, so its runs would all be the same"
    lines = errors_of(arms={"other": grid({f"descent.{key}": choices}, fixed={"objective": objective, **needed})})
    is_looked_at = weights(objective, **changes) != weights(objective)
    assert lines == ([] if is_looked_at else [line])
    assert is_looked_at == (objective == "constrained" or key == "form")


def test_an_objective_that_is_a_setting_or_searched_counts(errors_of):
    objectives = ["constrained", "erm"]
    (line,) = errors_of(settings={"objective": objectives})
    assert line.startswith("arms.constrained.search.descent.alpha: ignored by objective erm")
    assert errors_of(arms={"constrained": grid({**ALPHAS, "objective": objectives})}) == []
    (line,) = errors_of(arms={"constrained": grid({**ALPHAS, "objective": ["erm", "supervised"]})})
    assert "ignored by objective erm and supervised" in line


# ---------------------------------------------------------------- combinations


NUPI = {"descent.dual.optimizer": ["nupi", "adam"], "descent.dual.smoothing": [None, 0.5]}
BELONGS = (
    "descent.dual: proportional_gain and smoothing have no effect with optimizer 'adam'; "
    "remove them or set optimizer: nupi"
)


def test_cells_that_a_recipe_refuses_are_counted(errors_of):
    # Each value is sound with the first of the other.
    assert errors_of(arms={"constrained": grid({**NUPI, "seed": [0, 1, 2]})}) == [
        f"arms.constrained: 3 of its 12 combinations: {BELONGS}"
    ]


def test_cells_in_all_settings_are_counted(errors_of):
    (optimizer, smoothing) = NUPI
    arms = {"constrained": grid({smoothing: NUPI[smoothing], "seed": [0, 1]})}
    assert errors_of(settings={optimizer: NUPI[optimizer]}, arms=arms) == [
        f"arms.constrained: 2 of its 8 combinations: {BELONGS}"
    ]
    assert errors_of(settings=NUPI, arms={"erm": seeds(3)}) == [f"arms.erm: 1 of its 4 settings: {BELONGS}"]


def test_cells_repeat_no_earlier_error(errors_of):
    searched = {"descent.dual.optimizer": ["nupi", "adam"], "descent.dual.smoothing": [0.5, 0.6]}
    assert errors_of(arms={"constrained": grid(searched)}) == [f"arms.constrained: {BELONGS}"]


def test_more_cells_than_can_be_tried_are_not(errors_of, monkeypatch):
    arms = {"constrained": grid({**NUPI, "seed": [0, 1, 2]})}
    monkeypatch.setattr(checks_recipe, "_MAX_TRIED", 11)
    assert errors_of(arms=arms) == []
    monkeypatch.setattr(checks_recipe, "_MAX_TRIED", 12)
    assert len(errors_of(arms=arms)) == 1


# ---------------------------------------------------------------- sound files


SOUND = {
    "as it is": {},
    "unequal budgets with a reason": {
        "arms": {"constrained": grid(ALPHAS), "erm": seeds(5, fixed={"objective": "erm"})},
        "unequal_budgets": "a grid of three has no smaller size",
    },
    "ranges in steps": {"arms": {"constrained": grid({"descent.alpha": {"low": 0.1, "high": 0.5, "step": 0.1}})}},
    "whole numbers": {"arms": {"drawn": drawn("random", 3, {"training.epochs": {"low": 1, "high": 3, "type": "int"}})}},
    "a log range of whole numbers": {
        "arms": {"drawn": drawn("tpe", 3, {"model.width": {"low": 8, "high": 64, "log": True, "type": "int"}})},
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
        "arms": {"constrained": drawn("tpe", 5), "erm": seeds(5, fixed={"objective": "erm"})},
    },
    "a budget that the grid has": {"arms": {"constrained": grid(ALPHAS, budget=3)}},
    # Neither would be taken without the other.
    "settings that need each other": {
        "arms": {"resilient": grid({"descent.beta": [1.0, 10.0]}, fixed={"descent.resilience": "slack"})},
    },
    "a grid of levels": {"score": {"measure": "grid", "direction": "maximize", "gammas": "0:1:0.5"}},
    "a pruner": {"arms": {"drawn": drawn("tpe", 5, pruner={"name": "halving", "warmup_epochs": 2, "min_finished": 4})}},
    "a pruner by its name": {"arms": {"drawn": drawn("tpe", 5, pruner="hyperband")}},
    "every draw of what there is": {"arms": {"drawn": drawn("random", 4, {"descent.alpha": [0.1, 0.2, 0.3, 0.4]})}},
}


@pytest.mark.parametrize(("epochs", "warmup", "is_valid"), [(1, 0, False), (2, 0, True), (3, 2, False), (4, 2, True)])
def test_a_pruner_needs_an_epoch_to_decide_after_and_one_to_save(epochs, warmup, is_valid, errors_of):
    arm = drawn("tpe", 5, pruner={"name": "median", "warmup_epochs": warmup})
    why = f"no run could be ended early: training.epochs is {epochs}, expected at least {warmup + 2}"
    expected = [] if is_valid else [f"arms.drawn.pruner: {why}"]
    assert errors_of(fixed={"training.epochs": epochs}, arms={"drawn": arm}) == expected


@pytest.mark.parametrize("changes", SOUND.values(), ids=SOUND)
def test_a_valid_file_is_taken(changes, errors_of):
    assert errors_of(**changes) == []


@pytest.mark.parametrize("name", definition.names())
def test_a_search_that_comes_with_cudt_is_valid(name):
    sweep = definition.load(name)
    assert sweep.search.reproduces.strip()


def test_what_the_tests_call_a_search_file_is_one(tmp_path):
    path = write_search(tmp_path)
    assert strict_yaml.parse(path.read_text(), "mine") == search()
