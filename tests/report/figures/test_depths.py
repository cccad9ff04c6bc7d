from __future__ import annotations

import pytest

from cudt.report.figures.depths import depths
from tests.report import make_run
from tests.report.figures import groups_of, in_groups, make_depths, variant_of


def test_if_more_than_the_depth_differs_the_best_group_of_each_depth_is_taken(trained_run, tmp_path):
    for count in (3, 5):
        for alpha in (0.1, 0.2):
            overrides = [f"model.layers={count}", f"descent.alpha={alpha * count / 2}"]
            best = {"epoch": 1, "validation_loss": alpha}
            make_run(trained_run, tmp_path, {0.0: 1.0}, losses=[0.5] * count, overrides=overrides, best=best)
    ((_, found),) = depths(groups_of(tmp_path), "gaussian").items()
    assert [group.settings["descent.alpha"] for group in found["constrained"]] == pytest.approx([0.15, 0.25])


def test_one_depth_has_no_effect(trained_run, tmp_path):
    assert depths(make_depths(trained_run, tmp_path, layers=(3,)), "gaussian") == {}


def test_an_objective_that_is_not_installed_has_its_depths(trained_run, tmp_path):
    runs = [run for group in make_depths(trained_run, tmp_path, seeds=1) for run in group.runs]
    others = [variant_of(run, run.info.variant, {}, objective="my_package.tempered") for run in runs[:3]]
    ((_, found),) = depths(in_groups([*runs, *others]), "gaussian").items()
    assert list(found) == ["constrained", "erm", "my_package.tempered"]
    assert [group.n_layers for group in found["my_package.tempered"]] == [3, 5, 7]
