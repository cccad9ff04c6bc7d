from __future__ import annotations

import re

import pytest

from cudt.sweep import definition
from cudt.sweep.search import Range
from cudt.utils.errors import UserError
from tests.sweep.searches import ALPHA, ALPHAS, drawn, grid, seeds, write_search

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
        "arms: unequal budgets (constrained 3, erm 4 runs): the best of more runs is better by chance alone; "
        "make them equal, or give the reason in unequal_budgets",
    ),
    "a grid over a continuous range": (
        {"arms": {"constrained": grid(ALPHA)}},
        "arms.constrained.search.descent.alpha: a grid cannot have a continuous range; "
        "list the values, or give it a step",
    ),
}
ALL_FIVE = {
    "arms": {
        "typed": grid(ALPHAS, bugdet=3),
        "drawn": drawn("tpe", 4, {"descent.alpha": REVERSED, RATE: FROM_ZERO}),
        "endless": grid(ALPHA),
    }
}


@pytest.mark.parametrize(("changes", "line"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_alone_is_reported_in_one_line(changes, line, errors_of):
    assert errors_of(**changes) == [line]


def test_all_five_in_one_file_are_reported_together(errors_of):
    lines = errors_of(**ALL_FIVE)
    assert len(lines) == 5
    for start in (
        "arms.typed.bugdet: unknown key; did you mean 'budget'?",
        "arms.drawn.search.descent.alpha: empty range",
        f"arms.drawn.search.{RATE}: low must be above 0 in a log range",
        "arms.endless.search.descent.alpha: a grid cannot have a continuous range",
        "arms: unequal budgets (typed 3, drawn 4 runs)",
    ):
        assert sum(line.startswith(start) for line in lines) == 1, start


def test_the_command_tells_all_five_and_leaves_nothing_behind(command, tmp_path):
    path = write_search(tmp_path, **ALL_FIVE)
    code, output, error = command("sweep", "--search", path, "--out", "out")
    assert (code, output) == (2, "")
    assert error.splitlines()[0] == "error: search mine: 5 errors"
    assert len(error.splitlines()) == 6
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------- the shape of the file


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"scores": 3}, "scores: unknown key; did you mean 'score'?"),
        ({"score": None}, "score: missing"),
        ({"score": {"measure": "metric"}}, "score.direction: missing"),
        (
            {"score": {"measure": "metrc", "direction": "maximize"}},
            "score.measure: expected one of 'metric', 'loss', 'grid', got 'metrc'; did you mean 'metric'?",
        ),
        (
            {"score": {"measure": "metric", "direction": "maximise"}},
            "score.direction: expected one of 'maximize', 'minimize', got 'maximise'; did you mean 'maximize'?",
        ),
        (
            {"score": {"measure": "grid", "direction": "maximize", "gammas": "0:1:0"}},
            "score.gammas: γ grid '0:1:0': the step must be above 0, got 0",
        ),
        (
            {"arms": {"constrained": {"sampler": "gird", "search": ALPHAS}}},
            "arms.constrained.sampler: expected one of 'tpe', 'grid', 'random', 'seeds', got 'gird'; "
            "did you mean 'grid'?",
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
            "arms.drawn.pruner.name: expected one of 'median', 'halving', 'hyperband', got 'medain'; "
            "did you mean 'median'?",
        ),
        (
            {"arms": {"drawn": drawn("tpe", 5, pruner={"name": "median", "min_finished": 5})}},
            "arms.drawn.pruner.min_finished: no run could be ended early: expected fewer than the arm's 5 runs, got 5",
        ),
        (
            {"arms": {"drawn": drawn("tpe", 3, {"training.epochs": [2, 3, 4]}, pruner="median")}},
            "arms.drawn.pruner: compares runs after the same number of epochs, so training.epochs cannot be searched; "
            "remove one",
        ),
        ({"seed": -1}, "seed: expected an integer ≥ 0 and < 4294967296, got -1"),
        (
            {"settings": {"model.layers": 3}},
            "settings.model.layers: expected a list of true or false, integers, numbers, texts or null "
            "that is not empty, got 3",
        ),
    ],
)
def test_what_is_wrong_with_its_shape_is_reported(changes, line, errors_of):
    assert line in errors_of(**changes)


def test_mistakes_in_shape_do_not_hide_those_in_sense(errors_of):
    lines = errors_of(
        scores=3,
        score={"measure": "metric", "direction": "up"},
        arms={"constrained": grid({"descent.alpha": REVERSED}), "drawn": drawn("tpe", 4, {"descent.alfa": [0.1, 0.2]})},
    )
    found = "\n".join(lines)
    for part in ("scores", "score.direction", "empty range", "descent.alfa"):
        assert found.count(part) == 1, part


def test_a_file_that_cannot_be_mended_by_leaving_out_is_reported_all_the_same(errors_of):
    (line,) = [line for line in errors_of(arms={}) if line.startswith("arms")]
    assert line.startswith("arms: expected a mapping that is not empty, got {}")


def test_mistakes_in_one_part_of_a_setting_leave_the_others(errors_of):
    lines = errors_of(settings={"model.layers": 3, "model.widht": [16, 32]})
    assert [line.rpartition(": ")[0] for line in lines] == ["settings.model.layers", "settings: model.widht"]


def test_an_arm_of_nothing_is_reported(errors_of):
    line = "arms.constrained: expected a section with `sampler`, got None"
    assert errors_of(arms={"constrained": None}) == [line]
    assert errors_of(arms={"constrained": None, "erm": seeds(3)}) == [line]


def test_a_merge_key_is_an_unknown_key(tmp_path, errors_of):
    errors_of()
    path = tmp_path / "mine.yaml"
    path.write_text(
        path.read_text().replace("arms:", "arms:\n  one: &one {sampler: gird, budget: 0}\n  two: {<<: *one}")
    )
    with pytest.raises(UserError) as error:
        definition.load(str(path))
    paths = ["arms.one.sampler", "arms.one.budget", "arms.two.sampler", "arms.two.<<"]
    assert re.findall(r"^  (\S+?):? ", str(error.value), re.MULTILINE) == paths


@pytest.mark.parametrize(
    "changes",
    [{"arms": {1: grid(ALPHAS), "erm": seeds(3)}}, {"settings": {1: [2]}}, {"fixed": {1: 2}}],
    ids=["of an arm", "of a setting", "of what is fixed"],
)
def test_a_name_that_is_a_number_is_reported(changes, errors_of):
    (place,) = changes
    assert errors_of(**changes) == [f"{place}.1: expected text as a key; put it in quotes"]


def test_an_arm_without_a_sampler_may_have_other_mistakes(errors_of):
    lines = errors_of(arms={"constrained": {"sampler": "gird", "budget": 0, "search": {"descent.alpha": {"low": 0}}}})
    assert len(lines) == 3


@pytest.mark.parametrize(
    "arm",
    [
        drawn("random", 0),
        drawn("random", 3, {"descent.alpha": {"low": 0.1}}),
        grid({"descent.alpha": []}),
        {"sampler": "tpe", "budget": 3, "search": 3},
        {"sampler": "seeds", "budget": "three"},
        grid({"descent.alpha": {"low": 0.1}, "seed": [0, 1]}),
        drawn("tpe", 3, {"descent.beta": {"low": 0.1}, "seed": [0, 1]}, fixed={"descent.resilience": "slack"}),
        drawn("tpe", 3, {"descent.beta": {"low": 1, "high": 0.1}}, fixed={"descent.resilience": "slack"}),
        grid({"descent.alpha": {"low": 0.1}, "seed": [0, 1]}, budget=6),
        grid({"descent.alpha": {"low": 0.1, "high": 0.3, "stepp": 0.1}}),
    ],
    ids=[
        "a budget of 0",
        "half a range",
        "no choices",
        "a search that is none",
        "a budget in words",
        "half a grid",
        "half a range that another key needs",
        "an empty range that another key needs",
        "a budget for half a grid",
        "a mistyped step",
    ],
)
def test_what_is_wrong_is_not_reported_as_missing_too(arm, errors_of):
    assert len(errors_of(arms={"constrained": arm, "erm": seeds(3)})) == 1


def test_a_reason_that_is_none_is_not_asked_for_again(errors_of):
    (line,) = errors_of(unequal_budgets=3, arms={"constrained": grid(ALPHAS), "erm": seeds(4)})
    assert line.startswith("unequal_budgets: expected text or null, got 3")


def test_budgets_are_not_called_equal_where_an_arm_is_wrong(errors_of):
    arms = {"constrained": grid(ALPHAS), "erm": seeds(3), "other": {"sampler": "gird"}}
    (line,) = errors_of(unequal_budgets="because", arms=arms)
    assert line.startswith("arms.other.sampler: ")


def test_a_recipe_that_is_named_is_not_reported_as_missing(errors_of):
    assert not any(line.startswith("recipe") for line in errors_of(arms={}))
    assert not any(line.startswith("recipe") for line in errors_of(arms=3, score=None))
    (line,) = errors_of(recipe=3)
    assert line.startswith("recipe: expected text or null, got 3")
    assert any(line.startswith("recipe: missing") for line in errors_of(arms=3, recipe=None))


def test_a_choice_that_is_a_list_is_one_mistake(errors_of):
    lines = errors_of(arms={"constrained": grid({"descent.alpha": [0.1, [0.1, 0.2, 0.3]]}), "erm": seeds(3)})
    line = "arms.constrained.search.descent.alpha.1: expected a string, a number, true, false or null"
    assert lines == [line]


# ---------------------------------------------------------------- sense


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"score": {"measure": "metric", "direction": "maximize", "gammas": [0, 1]}},
            "score.gammas: only allowed with measure: grid, not with metric",
        ),
        ({"settings": {"model.width": [16, 32, 16]}}, "settings.model.width: 16 is listed twice"),
        (
            {"arms": {"constrained": grid({"descent.alpha": [0.1, 0.2, 0.1]})}},
            "arms.constrained.search.descent.alpha: 0.1 is listed twice",
        ),
        (
            {"arms": {"a/b": grid(ALPHAS)}},
            "arms.a/b: invalid arm name: use at most 100 letters, digits, '_', '-' and '.', it names a file",
        ),
        (
            {"settings": {"descent.alpha": [0.1, 0.2]}},
            "arms.constrained.search.descent.alpha: also set in settings; remove one of them",
        ),
        (
            {"fixed": {"descent.alpha": 0.1}},
            "arms.constrained.search.descent.alpha: also set in fixed; remove one of them",
        ),
        (
            {"arms": {"constrained": grid(ALPHAS, fixed={"descent.alpha": 0.1})}},
            "arms.constrained.search.descent.alpha: also set in arms.constrained.fixed; remove one of them",
        ),
        (
            {"settings": {"seed": [1, 2]}, "arms": {"constrained": grid(ALPHAS, fixed={"seed": 3})}},
            "arms.constrained.fixed.seed: also set in settings; remove one of them",
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
            {"arms": {"constrained": {"sampler": "tpe", "budget": 3}}},
            "arms.constrained.search: missing; sampler tpe needs settings to search",
        ),
        (
            {"arms": {"constrained": {"sampler": "random", "search": ALPHA}}},
            "arms.constrained.budget: missing; set the number of runs",
        ),
        ({"arms": {"erm": {"sampler": "seeds"}}}, "arms.erm.budget: missing; set the number of runs"),
        (
            {"arms": {"constrained": grid(ALPHAS, budget=5)}},
            "arms.constrained.budget: expected 3, the number of combinations of the grid, or no budget, got 5",
        ),
        ({"unequal_budgets": "because"}, "unequal_budgets: the budgets are equal; remove this key"),
        (
            {"arms": {"constrained": grid({"descent.alpha": {"low": 0.1, "high": 0.4, "step": -0.1}})}},
            "arms.constrained.search.descent.alpha: step must be above 0, got -0.1",
        ),
    ],
)
def test_what_makes_no_sense_is_reported_alone(changes, line, errors_of):
    assert errors_of(**changes) == [line]


def test_more_draws_than_there_are_combinations_are_reported(errors_of):
    (line,) = errors_of(arms={"drawn": drawn("random", 7, {"descent.alpha": [0.1, 0.2], "seed": [0, 1, 2]})})
    assert line.startswith("arms.drawn.budget: expected at most 6, the number of combinations")


def test_unknown_budgets_are_not_compared(errors_of):
    lines = errors_of(arms={"endless": grid(ALPHA), "erm": seeds(4)})
    assert not any("unequal" in line for line in lines)


def test_an_arm_of_seeds_next_to_a_setting_of_seeds_is_reported(errors_of):
    # The arm's would overrule the setting's: all settings would have the same runs.
    assert errors_of(settings={"seed": [0, 10]}, arms={"erm": seeds(3)}) == [
        "arms.erm.sampler: sampler seeds sets the seed, which is also set in settings; remove one of them"
    ]


def test_a_setting_that_is_fixed_too_is_reported(errors_of):
    assert errors_of(fixed={"model.layers": 4}, settings={"model.layers": [2, 3]}) == [
        "settings.model.layers: also set in fixed; remove one of them"
    ]


@pytest.mark.parametrize("fixed", [{"evaluation.gammas": [0, 1]}, {"evaluation": {"gammas": [0, 1]}}])
def test_arms_are_judged_on_one_grid(fixed, errors_of):
    arms = {"constrained": grid(ALPHAS, fixed=fixed)}
    (line,) = errors_of(score=GRID_SCORE, arms=arms)
    assert line.startswith("arms.constrained.fixed.evaluation.gammas: the arms would be scored on different grids")
    # Where the score says it, or no grid is judged, it is what `cudt eval-ood` does later.
    assert errors_of(score={**GRID_SCORE, "gammas": [0, 1]}, arms=arms) == []
    assert errors_of(arms=arms) == []


def test_no_arm_has_the_name_of_a_file_of_the_sweep(errors_of):
    assert errors_of(arms={"recipe": grid(ALPHAS)}) == [
        "arms.recipe: invalid arm name: reserved for the sweep's own files"
    ]


def test_a_step_beyond_the_range_is_reported(errors_of):
    (line,) = errors_of(arms={"constrained": grid({"descent.alpha": {"low": 0.1, "high": 0.4, "step": 0.5}})})
    message = "step 0.5 is larger than the range, which leaves 0.1 as the only value"
    assert line == f"arms.constrained.search.descent.alpha: {message}"


def test_a_range_of_very_many_numbers_is_not_listed_to_be_counted(errors_of, monkeypatch):
    def list_them(self):
        raise AssertionError(f"{self.high:g} numbers")

    monkeypatch.setattr(Range, "values", list_them)
    many = {"seed": {"low": 0, "high": 4e9, "type": "int"}}
    (line,) = errors_of(arms={"constrained": grid(many), "erm": seeds(3)}, unequal_budgets="to see")
    assert line.startswith("arms.constrained.search: a grid of 4,000,000,001 combinations; at most 10,000 are allowed")
    assert errors_of(arms={"drawn": drawn("random", 5, {"seed": {"low": 0, "high": 4e9, "type": "int"}})}) == []
