from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudt.report.collect import collect
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from tests.report import make_run
from tests.runs import plant_info, raw_info, without_checksums

CURVE = {0.0: 0.9, 1.0: 0.6}


def test_runs_come_in_the_order_of_recipe_objective_and_seed(trained_run, tmp_path):
    for name, objective, seed in [("b", "erm", 0), ("a", "erm", 1), ("a", "erm", 0), ("a", "constrained", 2)]:
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


def test_runs_that_differ_only_in_their_seed_are_a_group(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, seed=0)
    make_run(trained_run, tmp_path, CURVE, seed=1)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    assert len({run.group for run in collect([tmp_path]).runs}) == 2


def drop(key: str) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        info = raw_info(run)
        del info[key]
        (run.path / "run.json").write_text(json.dumps(info))

    return change


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
    "no run.json yet": (lambda run: (run.path / "run.json").unlink(), "training has not finished an epoch yet"),
    "truncated run.json": (cut("run.json", '{"format": 1, "status": "fin'), "damaged"),
    "run.json with something else": (cut("run.json", "[1]"), "damaged"),
    "running": (say(status="running"), "running"),
    "interrupted": (say(status="interrupted"), "interrupted"),
    "failed": (say(status="failed", reason="loss not finite"), "failed (loss not finite)"),
    "another format": (say(format=99), "format 99"),
    "an earlier format": (say(format=0), "in run format 0; this version reads format 1"),
    "before formats": (drop("format"), "by an early version of cudt, without a run format"),
    "a recipe of another version": (
        more("recipe.yaml", "dropout: 0.1\n"),
        "dropout: unknown key (written by another version of cudt, edited since, or its plug-in is not installed)",
    ),
    "no status": (drop("status"), "damaged"),
    "no recipe name": (drop("recipe"), "damaged"),
    "no verdicts": (drop("verdicts"), "damaged"),
    "no validation loss": (say(best={"epoch": 1}), "run.json: damaged (missing key best.validation_loss)"),
    "a validation loss of null": (
        say(best={"epoch": 1, "validation_loss": None}),
        "run.json: damaged (best.validation_loss: ",
    ),
    "a metric's name alone": (say(metric="accuracy"), "run.json: damaged (metric: Input should be an object)"),
    "a level in words": (say(gamma_train="0.4"), "run.json: damaged (gamma_train: "),
    "no level": (say(gamma_train=math.nan), "run.json: damaged (gamma_train: "),
    "no reference": (say(reference=None), "run.json: damaged (reference: "),
    "no layer judged": (say(verdicts=[]), "run.json: damaged (verdicts: "),
    "verdicts in words": (say(verdicts=["met"]), "run.json: damaged (verdicts.0: "),
    "verdicts without numbers": (
        say(verdicts=[{"verdict": "met"}]),
        "damaged (missing key verdicts.0.layer)",
    ),
    "a number of layers in words": (say(layers="3"), "run.json: damaged (layers: "),
    "an objective of its own": (say(objective="best"), "run.json: damaged (objective: "),
    "a seed of null": (say(seed=None), "run.json: damaged (seed: "),
    "a list of test data": (say(test_data=[1]), "run.json: damaged (test_data: "),
    "no recipe.yaml": (lambda run: (run.path / "recipe.yaml").unlink(), "damaged (no recipe.yaml)"),
    "truncated recipe.yaml": (cut("recipe.yaml", "name: reviews-ut\nexp"), "recipe.yaml"),
    "empty ood.csv": (cut("ood.csv", ""), "damaged"),
    "ood.csv without its columns": (cut("ood.csv", "perturbation,gam"), "damaged"),
    "layers.csv without its columns": (cut("layers.csv", "split,pert"), "damaged"),
    "ood.csv cut off in a name": (shorten("ood.csv", 20), "damaged"),
    "ood.csv cut off in a number": (shorten("ood.csv", 2), "ood.csv: damaged (the last line is cut off)"),
    "layers.csv cut off": (shorten("layers.csv", 30), "damaged"),
    "validation.csv without its columns": (cut("validation.csv", "perturbation,gam"), "damaged"),
    "ratio_bins.csv without its columns": (cut("ratio_bins.csv", "perturbation,gam"), "damaged"),
}


@pytest.mark.parametrize(("damage", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_run_that_cannot_be_used_is_named_and_the_rest_is_reported(damage, reason, trained_run, tmp_path):
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
    assert collected.warnings == [f"{bare.path}: not evaluated yet and has no curve; run `cudt eval-ood {bare.path}`"]


def test_a_run_without_weights_is_not_expected_to_be_evaluated(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    make_run(trained_run, tmp_path, objective="erm", overrides=["checkpoints.keep=none-when-finished"])
    collected = collect([tmp_path])
    assert len(collected.runs) == 2
    assert collected.warnings == []


def test_a_run_that_was_evaluated_by_an_earlier_version_is_whole(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, old=True)
    collected = collect([tmp_path])
    assert collected.warnings == []
    assert collected.runs[0].ratio_bins.empty


def test_a_run_whose_loss_is_not_finite_is_read(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, best={"validation_loss": math.nan}, reference=math.inf)
    assert len(collect([tmp_path]).runs) == 1


def test_a_folder_without_runs_has_none(tmp_path):
    assert collect([tmp_path]).runs == []


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        collect([tmp_path / "gone"])


def test_a_folder_without_runs_is_a_warning_if_another_has_runs(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "a", CURVE)
    (tmp_path / "b").mkdir()
    assert collect([tmp_path / "a", tmp_path / "b"]).warnings == [f"{tmp_path / 'b'}: no runs found"]


def test_a_copy_of_a_run_is_named_and_counts_once(trained_run, tmp_path):
    first = make_run(trained_run, tmp_path / "a", CURVE)
    second = tmp_path / "b" / first.path.name
    shutil.copytree(first.path, second)
    collected = collect([tmp_path])
    assert [run.run.path for run in collected.runs] == [first.path]
    assert collected.warnings == [f"{second}: skipped: the same run (recipe, settings, seed) as {first.path}"]


def test_of_two_copies_the_evaluated_one_is_used(trained_run, tmp_path):
    first = make_run(trained_run, tmp_path / "a")
    second = make_run(trained_run, tmp_path / "b", CURVE)
    collected = collect([tmp_path])
    assert [run.run.path for run in collected.runs] == [second.path]
    assert collected.warnings == [f"{first.path}: skipped: the same run (recipe, settings, seed) as {second.path}"]


def refusing(function: Any, closed: Path) -> Any:
    """A function of the system that one path refuses, as it does anyone but root without permission."""

    def refuse(path: Any = ".", *rest: Any, **more: Any) -> Any:
        if isinstance(path, str | Path) and Path(path) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return function(path, *rest, **more)

    return refuse


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


@pytest.mark.parametrize("name", ["run.json", "recipe.yaml", "ood.csv"])
def test_a_file_without_permission_is_named(name, trained_run, tmp_path, monkeypatch):
    good = make_run(trained_run, tmp_path, CURVE)
    closed = make_run(trained_run, tmp_path, CURVE, objective="erm").path / name
    for opener in ("io.open", "builtins.open"):
        monkeypatch.setattr(opener, refusing(open, closed))
    collected = collect([tmp_path])
    assert [run.run.path for run in collected.runs] == [good.path]
    (warning,) = collected.warnings
    assert str(closed) in warning
    assert "cannot be read" in warning
    assert "Permission denied" in warning
