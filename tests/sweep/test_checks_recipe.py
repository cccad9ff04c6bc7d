from __future__ import annotations

from typing import Any

import pytest
import torch

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives import make_objective
from cudt.sweep import definition
from tests.sweep.searches import ALPHAS, drawn, grid, seeds

RATE = "descent.dual.learning_rate"
GRID_SCORE = {"measure": "grid", "direction": "maximize"}
REVERSED = {"low": 0.5, "high": 0.1}
FROM_ZERO = {"low": 0, "high": 0.1, "log": True}


# ---------------------------------------------------------------- what the recipe says to it


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"fixed": {"training.epoch": 3}},
            ["fixed", "training.epoch: unknown key; did you mean 'epochs'?"],
        ),
        (
            {"settings": {"model.layer": [2, 3]}},
            ["model.layer: unknown key; did you mean 'layers'?"],
        ),
        (
            {"arms": {"constrained": grid(ALPHAS, fixed={"objective": "constrain"})}},
            [
                "arms.constrained",
                "objective: unknown objective 'constrain'; did you mean 'constrained'?",
            ],
        ),
        (
            {"arms": {"constrained": grid({"descent.alpha": [0.1, 1.5, 0.2]})}},
            ["arms.constrained", "descent.alpha: expected a number ≥ 0 and < 1", "got 1.5"],
        ),
        (
            {"arms": {"constrained": grid({"evaluation.batch_size": [8, 16]})}},
            ["arms.constrained", "evaluation.batch_size", "does not affect training"],
        ),
        (
            {"arms": {"erm": grid(ALPHAS, fixed={"objective": "erm"})}},
            ["arms.erm.search.descent.alpha: ignored by objective erm"],
        ),
    ],
)
def test_what_the_recipe_refuses_is_reported_once_and_before_anything_is_run(
    changes, parts, errors_of
):
    (line,) = errors_of(**changes)
    for part in parts:
        assert part in line


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
    of = make_objective(
        objective, LayerwiseDescent(3, **{"alpha": 0.1, "reference": 1.0, **changes})
    )
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
    lines = errors_of(
        arms={"other": grid({f"descent.{key}": choices}, fixed={"objective": objective, **needed})}
    )
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


# ---------------------------------------------------------------- sound files


SOUND = {
    "as it is": {},
    "unequal budgets with a reason": {
        "arms": {"constrained": grid(ALPHAS), "erm": seeds(5, fixed={"objective": "erm"})},
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
        "arms": {"constrained": drawn("tpe", 5), "erm": seeds(5, fixed={"objective": "erm"})},
    },
    "a budget that the grid has": {"arms": {"constrained": grid(ALPHAS, budget=3)}},
    # Neither would be taken without the other.
    "settings that need each other": {
        "arms": {
            "resilient": grid({"descent.beta": [1.0, 10.0]}, fixed={"descent.resilience": "slack"})
        },
    },
    "a pruner": {
        "arms": {
            "drawn": drawn(
                "tpe", 5, pruner={"name": "halving", "warmup_epochs": 2, "min_finished": 4}
            )
        }
    },
    "every draw of what there is": {
        "arms": {"drawn": drawn("random", 4, {"descent.alpha": [0.1, 0.2, 0.3, 0.4]})}
    },
}


@pytest.mark.parametrize(
    ("epochs", "warmup", "is_valid"), [(1, 0, False), (2, 0, True), (3, 2, False), (4, 2, True)]
)
def test_a_pruner_needs_an_epoch_to_decide_after_and_one_to_save(
    epochs, warmup, is_valid, errors_of
):
    arm = drawn("tpe", 5, pruner={"name": "median", "warmup_epochs": warmup})
    why = (
        f"no run could be ended early: training.epochs is {epochs}, expected at least {warmup + 2}"
    )
    expected = [] if is_valid else [f"arms.drawn.pruner: {why}"]
    assert errors_of(fixed={"training.epochs": epochs}, arms={"drawn": arm}) == expected


@pytest.mark.parametrize("changes", SOUND.values(), ids=SOUND)
def test_a_valid_file_is_taken(changes, errors_of):
    assert errors_of(**changes) == []


@pytest.mark.parametrize("name", definition.names())
def test_a_search_that_comes_with_cudt_is_valid(name):
    sweep = definition.load(name)
    assert sweep.search.reproduces.strip()
