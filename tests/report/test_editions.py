"""Runs with different test data or frozen weights are shown apart and not compared."""

from __future__ import annotations

from cudt.report import editions
from cudt.report.collect import collect
from cudt.report.comparable import cell_of, families
from cudt.report.groups import read_groups
from tests.report import make_run

CURVE = {0.0: 0.9, 1.0: 0.6}


def test_runs_of_one_recipe_on_other_test_data_are_apart(trained_run, tmp_path):
    for seed, data in enumerate(("new", "old", "new")):
        make_run(trained_run, tmp_path, CURVE, seed=seed, test_data=data)
    make_run(trained_run, tmp_path, CURVE, objective="erm", test_data="old")
    make_run(trained_run, tmp_path, None, objective="erm", seed=1, test_data=None)
    make_run(trained_run, tmp_path, CURVE, name="other", test_data="elsewhere")
    runs, warnings = editions.mark(collect([tmp_path]).runs)
    marked = {(run.recipe, run.objective, run.seed): run.edition for run in runs}
    # New and old have two runs each: of equally many, the first.
    new, old = marked["reviews-ut", "constrained", 0], marked["reviews-ut", "constrained", 1]
    assert {new, old} == {"1", "2"}
    assert marked["reviews-ut", "constrained", 2] == new
    assert marked["reviews-ut", "erm", 0] == old
    # A run that is not evaluated belongs to the first.
    assert marked["reviews-ut", "erm", 1] == "1"
    assert marked["other", "constrained", 0] == ""
    (warning,) = warnings
    assert warning.startswith(
        "reviews-ut: the runs have 2 different sets of test data or frozen weights"
    )
    assert len({cell_of(run) for run in runs if run.recipe == "reviews-ut"}) == 2
    assert sorted(families(runs)) == ["other", "reviews-ut, test data=1", "reviews-ut, test data=2"]
    # Seeds on other data are no seeds of a group.
    assert sorted(len(group.runs) for group in read_groups(runs)) == [1, 1, 1, 1, 2]


def test_test_data_are_named_by_the_settings_of_the_task_where_these_make_the_difference(
    trained_run, tmp_path
):
    for size in (40, 60):
        for objective in ("constrained", "erm"):
            overrides = [f"task.test={size}"]
            make_run(
                trained_run,
                tmp_path,
                CURVE,
                objective=objective,
                overrides=overrides,
                test_data=str(size),
            )
    runs, _ = editions.mark(collect([tmp_path]).runs)
    assert {name: len(mine) for name, mine in families(runs).items()} == {
        "reviews-ut, test=40": 2,
        "reviews-ut, test=60": 2,
    }
