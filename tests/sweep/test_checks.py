from __future__ import annotations

import pytest

from tests.sweep.searches import ALPHA, ALPHAS, drawn, grid, seeds

RATE = "descent.dual.learning_rate"
GRID_SCORE = {"measure": "grid", "direction": "maximize"}
REVERSED = {"low": 0.5, "high": 0.1}
FROM_ZERO = {"low": 0, "high": 0.1, "log": True}


# ---------------------------------------------------------------- the five that come up most


MISTAKES = {
    "an unknown key": (
        {"arms": {"constrained": grid(ALPHAS, bugdet=3)}},
        "arms.constrained.bugdet: unknown key; did you mean 'budget'?",
    ),
    "empty range": (
        {"arms": {"drawn": drawn("tpe", 3, {"descent.alpha": REVERSED})}},
        "arms.drawn.search.descent.alpha: empty range: low (0.5) must be below high (0.1)",
    ),
    "a log range from 0": (
        {"arms": {"drawn": drawn("random", 3, {RATE: FROM_ZERO})}},
        f"arms.drawn.search.{RATE}: low must be above 0 in a log range, got 0",
    ),
    "unequal budgets": (
        {"arms": {"constrained": grid(ALPHAS), "erm": seeds(4, fixed={"objective": "erm"})}},
        "arms: unequal budgets (constrained 3, erm 4 runs): the best of more runs is better by "
        "chance alone; "
        "make them equal, or give the reason in unequal_budgets",
    ),
    "a grid over a continuous range": (
        {"arms": {"constrained": grid(ALPHA)}},
        "arms.constrained.search.descent.alpha: a grid cannot have a continuous range; "
        "list the values, or give it a step",
    ),
}


@pytest.mark.parametrize(("changes", "line"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_alone_is_reported_in_one_line(changes, line, errors_of):
    assert errors_of(**changes) == [line]


# ---------------------------------------------------------------- the shape of the file


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"scores": 3}, "scores: unknown key; did you mean 'score'?"),
        (
            {"score": {"measure": "metrc", "direction": "maximize"}},
            "score.measure: expected one of 'metric', 'loss', 'grid', got 'metrc'; did you mean "
            "'metric'?",
        ),
        (
            {
                "arms": {
                    "constrained": grid({"descent.alpha": {"low": 0.1, "high": 0.4, "stepp": 0.1}}),
                    "erm": seeds(3),
                }
            },
            "arms.constrained.search.descent.alpha.stepp: unknown key; did you mean 'step'?",
        ),
        (
            {"arms": {"drawn": drawn("tpe", 5, pruner="medain")}},
            "arms.drawn.pruner.name: expected one of 'median', 'halving', 'hyperband', got "
            "'medain'; "
            "did you mean 'median'?",
        ),
        (
            {"arms": {"drawn": drawn("tpe", 5, pruner={"name": "median", "min_finished": 5})}},
            "arms.drawn.pruner.min_finished: no run could be ended early: expected fewer than "
            "the arm's 5 runs, got 5",
        ),
        (
            {"arms": {"drawn": drawn("tpe", 3, {"training.epochs": [2, 3, 4]}, pruner="median")}},
            "arms.drawn.pruner: compares runs after the same number of epochs, so "
            "training.epochs cannot be searched; "
            "remove one",
        ),
    ],
)
def test_what_is_wrong_with_its_shape_is_reported(changes, line, errors_of):
    assert line in errors_of(**changes)


# ---------------------------------------------------------------- sense


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"score": {"measure": "metric", "direction": "maximize", "gammas": [0, 1]}},
            "score.gammas: only allowed with measure: grid, not with metric",
        ),
        (
            {"arms": {"constrained": grid({"descent.alpha": [0.1, 0.2, 0.1]})}},
            "arms.constrained.search.descent.alpha: 0.1 is listed twice",
        ),
        (
            {"arms": {"a/b": grid(ALPHAS)}},
            "arms.a/b: invalid arm name: use at most 100 letters, digits, '_', '-' and '.', it "
            "names a file",
        ),
        (
            {"settings": {"descent.alpha": [0.1, 0.2]}},
            "arms.constrained.search.descent.alpha: also set in settings; remove one of them",
        ),
        (
            {"arms": {"erm": seeds(3, search=ALPHAS)}},
            "arms.erm.search: sampler seeds varies only the seed; "
            "to search more, use sampler grid with seed: [0, 1, 2]",
        ),
        (
            {"arms": {"constrained": grid({})}},
            "arms.constrained.search: missing; sampler grid needs settings to search",
        ),
        (
            {"arms": {"constrained": {"sampler": "random", "search": ALPHA}}},
            "arms.constrained.budget: missing; set the number of runs",
        ),
        ({"unequal_budgets": "because"}, "unequal_budgets: the budgets are equal; remove this key"),
    ],
)
def test_what_makes_no_sense_is_reported_alone(changes, line, errors_of):
    assert errors_of(**changes) == [line]


def test_more_draws_than_there_are_combinations_are_reported(errors_of):
    (line,) = errors_of(
        arms={"drawn": drawn("random", 7, {"descent.alpha": [0.1, 0.2], "seed": [0, 1, 2]})}
    )
    assert line.startswith("arms.drawn.budget: expected at most 6, the number of combinations")


def test_an_arm_of_seeds_next_to_a_setting_of_seeds_is_reported(errors_of):
    # The arm's would overrule the setting's: all settings would have the same runs.
    assert errors_of(settings={"seed": [0, 10]}, arms={"erm": seeds(3)}) == [
        "arms.erm.sampler: sampler seeds sets the seed, which is also set in settings; remove "
        "one of them"
    ]


@pytest.mark.parametrize(
    "fixed", [{"evaluation.gammas": [0, 1]}, {"evaluation": {"gammas": [0, 1]}}]
)
def test_arms_are_judged_on_one_grid(fixed, errors_of):
    arms = {"constrained": grid(ALPHAS, fixed=fixed)}
    (line,) = errors_of(score=GRID_SCORE, arms=arms)
    assert line.startswith(
        "arms.constrained.fixed.evaluation.gammas: the arms would be scored on different grids"
    )
    # Where the score says it, or no grid is judged, it is what `cudt eval-ood` does later.
    assert errors_of(score={**GRID_SCORE, "gammas": [0, 1]}, arms=arms) == []
    assert errors_of(arms=arms) == []
