from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from cudt.report.collect import collect
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from tests.report import make_run
from tests.runs import plant_info, without_checksums

CURVE = {0.0: 0.9, 1.0: 0.6}


def test_runs_come_in_the_order_of_recipe_objective_and_seed(trained_run, tmp_path):
    for name, objective, seed in [
        ("b", "erm", 0),
        ("a", "erm", 1),
        ("a", "erm", 0),
        ("a", "constrained", 2),
    ]:
        make_run(trained_run, tmp_path / name, CURVE, name=name, objective=objective, seed=seed)
    collected = collect([tmp_path])
    assert collected.warnings == []
    assert collected.recipes == ["a", "b"]
    assert [(run.recipe, run.objective, run.info.seed) for run in collected.runs] == [
        ("a", "constrained", 2),
        ("a", "erm", 0),
        ("a", "erm", 1),
        ("b", "erm", 0),
    ]


def cut(name: str, content: str) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        (run.path / name).write_text(content)

    return change


def shorten(name: str, count: int) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        content = (run.path / name).read_bytes()
        (run.path / name).write_bytes(content[:-count])

    return change


def more(name: str, content: str) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        with (run.path / name).open("a") as file:
            file.write(content)

    return change


def say(**changes: Any) -> Callable[[Run], None]:
    return lambda run: plant_info(run, **changes)


BROKEN: dict[str, tuple[Callable[[Run], None], str]] = {
    "no run.json yet": (
        lambda run: (run.path / "run.json").unlink(),
        "training has not finished an epoch yet",
    ),
    "truncated run.json": (cut("run.json", '{"format": 1, "status": "fin'), "damaged"),
    "running": (say(status="running"), "running"),
    "failed": (say(status="failed", reason="loss not finite"), "failed (loss not finite)"),
    "another format": (say(format=99), "format 99"),
    "no validation loss": (
        say(best={"epoch": 1}),
        "run.json: damaged (missing key best.validation_loss)",
    ),
    "no recipe.yaml": (lambda run: (run.path / "recipe.yaml").unlink(), "damaged (no recipe.yaml)"),
    "ood.csv cut off in a number": (
        shorten("ood.csv", 2),
        "ood.csv: damaged (the last line is cut off)",
    ),
}


@pytest.mark.parametrize(("damage", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_run_that_cannot_be_used_is_named_and_the_rest_is_reported(
    damage, reason, trained_run, tmp_path
):
    good = make_run(trained_run, tmp_path, CURVE)
    bad = make_run(trained_run, tmp_path, CURVE, objective="erm")
    without_checksums(bad)
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
        f"{bare.path}: not evaluated yet and has no curve; run `cudt eval-ood {bare.path}`"
    ]


def test_a_run_without_weights_is_not_expected_to_be_evaluated(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    make_run(
        trained_run, tmp_path, objective="erm", overrides=["checkpoints.keep=none-when-finished"]
    )
    collected = collect([tmp_path])
    assert len(collected.runs) == 2
    assert collected.warnings == []


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        collect([tmp_path / "gone"])


def test_a_folder_without_runs_is_a_warning_if_another_has_runs(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "a", CURVE)
    (tmp_path / "b").mkdir()
    assert collect([tmp_path / "a", tmp_path / "b"]).warnings == [
        f"{tmp_path / 'b'}: no runs found"
    ]


def test_a_copy_of_a_run_is_named_and_counts_once(trained_run, tmp_path):
    first = make_run(trained_run, tmp_path / "a", CURVE)
    second = tmp_path / "b" / first.path.name
    shutil.copytree(first.path, second)
    collected = collect([tmp_path])
    assert [run.run.path for run in collected.runs] == [first.path]
    assert collected.warnings == [
        f"{second}: skipped: the same run (recipe, settings, seed) as {first.path}"
    ]


def test_a_folder_without_permission_is_named(trained_run, tmp_path, monkeypatch):
    good = make_run(trained_run, tmp_path, CURVE)
    closed = tmp_path / "erm-12345678"
    closed.mkdir()
    # Root may read anything, and tests are often run by root.
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: path != closed and access(path, mode))
    collected = collect([tmp_path])
    assert [run.run.path for run in collected.runs] == [good.path]
    assert collected.warnings == [f"{closed}: cannot be read (permission denied)"]
