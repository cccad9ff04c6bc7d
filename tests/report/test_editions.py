"""Runs with different test data or frozen weights are shown apart and not compared."""

from __future__ import annotations

import re

import pandas as pd

from cudt import report
from cudt.report import editions
from cudt.report.collect import collect
from cudt.report.comparable import cell_of, families, matches
from cudt.report.groups import read_groups
from cudt.utils.files import file_name
from tests.report import make_run
from tests.report.figures import variant_of

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
    assert warning.startswith("reviews-ut: the runs have 2 different sets of test data or frozen weights")
    assert len({cell_of(run) for run in runs if run.recipe == "reviews-ut"}) == 2
    assert sorted(families(runs)) == ["other", "reviews-ut, test data=1", "reviews-ut, test data=2"]
    # Seeds on other data are no seeds of a group.
    assert sorted(len(group.runs) for group in read_groups(runs)) == [1, 1, 1, 1, 2]


def test_test_data_are_named_by_the_settings_of_the_task_where_these_make_the_difference(trained_run, tmp_path):
    for size in (40, 60):
        for objective in ("constrained", "erm"):
            overrides = [f"task.test={size}"]
            make_run(trained_run, tmp_path, CURVE, objective=objective, overrides=overrides, test_data=str(size))
    runs, _ = editions.mark(collect([tmp_path]).runs)
    assert {name: len(mine) for name, mine in families(runs).items()} == {
        "reviews-ut, test=40": 2,
        "reviews-ut, test=60": 2,
    }


def test_frozen_weights_of_the_same_name_tell_runs_apart(trained_run, tmp_path):
    for seed, weights in enumerate("ab"):
        make_run(trained_run, tmp_path, CURVE, seed=seed, test_data="same", frozen_weights=weights)
    runs, _ = editions.mark(collect([tmp_path]).runs)
    assert [run.edition for run in runs] == ["1", "2"]


def test_other_test_data_have_charts_and_figures_of_their_own(trained_run, tmp_path):
    for objective in ("constrained", "erm"):
        make_run(trained_run, tmp_path / "runs", CURVE, objective=objective, test_data="new")
    make_run(trained_run, tmp_path / "runs", {0.0: 0.2, 1.0: 0.1}, objective="erm", seed=1, test_data="old")
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    page = made.page.read_text(encoding="utf-8")
    assert re.findall("<h2>(reviews-ut.*?)</h2>", page) == ["reviews-ut, test data=1", "reviews-ut, test data=2"]
    assert any("2 different sets of test data" in warning for warning in made.warnings)
    paired = pd.read_csv(tmp_path / "report" / "paired.csv")
    assert set(paired["against_variant"].astype(str).str.endswith("-2")) == {False}
    drawn = {path.name for path in (tmp_path / "report" / "figures").glob("*errors-over-layers.png")}
    assert drawn == {f"{file_name(f'reviews-ut, test data={number}')}-errors-over-layers.png" for number in (1, 2)}


def test_another_encoder_or_other_selected_weights_are_not_comparable(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    constrained, erm = collect([tmp_path]).runs
    other = variant_of(erm, "other", {"model": {"pretrained": "org/other"}})
    assert matches([constrained, erm])
    assert not matches([constrained, other])
    assert sorted(families([constrained, other])) == ["reviews-ut, pretrained=", "reviews-ut, pretrained=other"]
    last = variant_of(erm, "last", {"training": {"select": "last"}})
    assert not matches([constrained, last])
    assert len(families([constrained, last])) == 2


def test_seeds_with_another_automatic_target_are_another_group(trained_run, tmp_path):
    for seed, loss in enumerate((0.5, 0.5, 0.4)):
        overrides = ["descent.alpha={target_loss: auto}"]
        make_run(
            trained_run, tmp_path, CURVE, seed=seed, overrides=overrides, target={"loss": loss, "source": "a pilot"}
        )
    groups = read_groups(collect([tmp_path]).runs)
    assert sorted(len(group.runs) for group in groups) == [1, 2]
    assert {group.settings["descent.alpha.target_loss"] for group in groups} == {0.5, 0.4}
