from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest

from cudt.errors import UserError
from cudt.report.collect import collect
from cudt.runs import Run
from tests.report import make_run

CURVE = {0.0: 0.9, 1.0: 0.6}


def test_runs_come_in_the_order_of_recipe_objective_and_seed(trained_run, tmp_path):
    for name, objective, seed in [("b", "erm", 0), ("a", "erm", 1), ("a", "erm", 0), ("a", "constrained", 2)]:
        make_run(trained_run, tmp_path / name, CURVE, name=name, objective=objective, seed=seed)
    collected = collect([tmp_path])
    assert collected.warnings == []
    assert collected.recipes == ["a", "b"]
    assert [(run.recipe, run.objective, run.info["seed"]) for run in collected.runs] == [
        ("a", "constrained", 2),
        ("a", "erm", 0),
        ("a", "erm", 1),
        ("b", "erm", 0),
    ]


def test_runs_that_differ_in_their_seed_alone_are_a_group(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, seed=0)
    make_run(trained_run, tmp_path, CURVE, seed=1)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    assert len({run.group for run in collect([tmp_path]).runs}) == 2


def drop(key: str) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        info = run.info()
        del info[key]
        (run.path / "run.json").write_text(json.dumps(info))

    return change


def cut(name: str, content: str) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        (run.path / name).write_text(content)

    return change


BROKEN: dict[str, tuple[Callable[[Run], None], str]] = {
    "no run.json yet": (lambda run: (run.path / "run.json").unlink(), ""),
    "truncated run.json": (cut("run.json", '{"format": 1, "status": "fin'), "damaged"),
    "run.json with something else": (cut("run.json", "[1]"), "damaged"),
    "running": (lambda run: run.update_info(status="running"), "running"),
    "interrupted": (lambda run: run.update_info(status="interrupted"), "interrupted"),
    "failed": (lambda run: run.update_info(status="failed", reason="loss not finite"), "failed (loss not finite)"),
    "another format": (lambda run: run.update_info(format=99), "format 99"),
    "no status": (drop("status"), "damaged"),
    "no recipe name": (drop("recipe"), "damaged"),
    "no verdicts": (drop("verdicts"), "damaged"),
    "no recipe.yaml": (lambda run: (run.path / "recipe.yaml").unlink(), "not a run folder"),
    "truncated recipe.yaml": (cut("recipe.yaml", "name: reviews-ut\nexp"), "recipe.yaml"),
    "empty ood.csv": (cut("ood.csv", ""), "damaged"),
    "ood.csv without its columns": (cut("ood.csv", "perturbation,gam"), "damaged"),
    "layers.csv without its columns": (cut("layers.csv", "split,pert"), "damaged"),
    "ratio_bins.csv without its columns": (cut("ratio_bins.csv", "perturbation,gam"), "damaged"),
}


@pytest.mark.parametrize(("damage", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_run_that_cannot_be_used_is_named_and_the_rest_is_reported(damage, reason, trained_run, tmp_path):
    good = make_run(trained_run, tmp_path, CURVE)
    bad = make_run(trained_run, tmp_path, CURVE, objective="erm")
    damage(bad)
    collected = collect([tmp_path])
    assert [run.run.path for run in collected.runs] == [good.path]
    assert len(collected.warnings) == 1
    assert str(bad.path) in collected.warnings[0]
    assert reason in collected.warnings[0]


def test_a_run_that_is_not_evaluated_stays_with_a_warning(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    bare = make_run(trained_run, tmp_path, objective="erm")
    collected = collect([tmp_path])
    assert len(collected.runs) == 2
    assert collected.runs[1].ood.empty
    assert collected.warnings == [
        f"{bare.path}: not evaluated yet, so it has no curve; run `cudt eval-ood {bare.path}`"
    ]


def test_a_run_that_was_evaluated_by_an_earlier_version_is_whole(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, old=True)
    collected = collect([tmp_path])
    assert collected.warnings == []
    assert collected.runs[0].ratio_bins.empty


def test_a_folder_without_runs_has_none(tmp_path):
    assert collect([tmp_path]).runs == []


def test_a_missing_folder_is_told(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        collect([tmp_path / "gone"])


def test_a_copy_of_a_run_is_named_and_counts_once(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, CURVE)
    shutil.copytree(run.path, tmp_path / "copy")
    collected = collect([tmp_path])
    assert len(collected.runs) == 1
    assert len(collected.warnings) == 1
    assert "the same run as" in collected.warnings[0]
