from __future__ import annotations

import pytest

from cudt.report.figures import panels, words
from tests.report import make_run
from tests.report.figures import groups_of

CURVE = {0.0: 1.0, 1.0: 0.8}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (
            [["descent.alpha=0.3"], ["descent.alpha=0.05"]],
            ["constrained α=0.05", "constrained α=0.3"],
        ),
        (
            [["descent.alpha=0.2"], ["descent.alpha=0.2", "descent.dual.learning_rate=0.03"]],
            ["constrained η₂=0.005", "constrained η₂=0.03"],
        ),
        (
            [["descent.alpha=0.3", "model.layers=5"], ["descent.alpha=0.05", "model.layers=10"]],
            ["constrained L=5, α=0.3", "constrained L=10, α=0.05"],
        ),
    ],
)
def test_variants_are_named_and_sorted_by_what_sets_them_apart(
    settings, names, trained_run, tmp_path
):
    for overrides in settings:
        make_run(trained_run, tmp_path, CURVE, overrides=overrides)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    named = words.labels(groups_of(tmp_path), "gaussian")
    assert list(named.values()) == [f"{name} (1 seed)" for name in [*names, "erm"]]


def test_seeds_are_counted_for_each_objective_if_they_differ(trained_run, tmp_path):
    for seed in range(2):
        make_run(trained_run, tmp_path, CURVE, seed=seed)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    constrained, erm = groups_of(tmp_path)
    assert words.seeds_of_each([constrained, erm], "gaussian") == "2 seeds constrained, 1 seed erm"
    assert words.seeds_of_each([erm], "gaussian") == "1 seed"
    assert words.seeds_range([constrained, erm], "gaussian") == "1 to 2 seeds"


def test_dollar_signs_do_not_start_a_formula():
    _, grid = panels.panels(1, 1)
    text = grid[0, 0].set_title(words.plain("$a$"))
    assert text._preprocess_math(text.get_text()) == ("$a$", False)
