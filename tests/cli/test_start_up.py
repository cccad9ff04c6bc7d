"""What commands import before they have something to compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cudt.config import recipe as recipes
from tests.cli.conftest import modules_imported_by, python

HEAVY = (
    "torch",
    "transformers",
    "pandas",
    "numpy",
    "pyarrow",
    "datasets",
    "matplotlib",
    "accelerate",
    "optuna",
)
#: Calls commands one after the other in one process; prints the exit code, the error and the heavy
#: imports after each.
CALLS = f"""
import contextlib, io, json, sys
from cudt.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["cudt", *words]
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([code, error.getvalue(), [name for name in {HEAVY!r} if name in sys.modules]]))
"""
SEARCH = """
recipe: smoke-text
score: {measure: grid, direction: maximize}
arms:
  constrained: {sampler: seeds, budget: 1, fixed: {objective: constrained, training.epoch: 3, model.layer: 3}}
"""


def refused(*commands: list[str], cwd: Path) -> list[str]:
    """The errors of commands that must all be refused without a heavy import."""
    done = python("-c", CALLS, json.dumps(commands), cwd=cwd)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(code, heavy) for code, _, heavy in found] == [(2, [])] * len(commands), (
        found,
        done.stderr,
    )
    return [error for _, error, _ in found]


def test_typos_in_every_recipe_are_refused_without_heavy_imports(tmp_path):
    typos = ["--set", "training.epoch=3", "--set", "model.layer=3", "--set", "task.limits=3"]
    errors = refused(
        *(["train", "--recipe", name, *typos] for name in recipes.names()), cwd=tmp_path
    )
    for error in errors:
        for key in ("training.epoch", "model.layer", "task.limits"):
            assert f"{key}: unknown key" in error


GONE = [
    ["eval-ood", "gone"],
    ["compare", "gone", "lost"],
    ["runs", "gone"],
    ["report", "gone"],
]


def test_a_search_with_typos_is_refused_without_heavy_imports(tmp_path):
    (tmp_path / "search.yaml").write_text(SEARCH, encoding="utf-8")
    (error,) = refused(["sweep", "--search", "search.yaml"], cwd=tmp_path)
    assert "training.epoch" in error
    assert "model.layer" in error


def test_typos_of_models_and_tasks_outside_of_cudt_are_refused_together(call, tmp_path):
    (tmp_path / "outside.yaml").write_text(
        "task: {name: tests.outside.toys.signs, sise: 3}\nmodel: {name: "
        "tests.outside.toys.residual, layer: 3}\n",
        encoding="utf-8",
    )
    code, _, error = call("train", "--recipe", "outside.yaml")
    assert code == 2
    assert "task.sise: unknown key" in error
    assert "model.layer: unknown key; did you mean 'layers'?" in error


def test_missing_folders_are_refused_without_heavy_imports(tmp_path):
    for error in refused(*GONE, cwd=tmp_path):
        assert "folder 'gone' does not exist" in error


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["recipes"]], ids=" ".join)
def test_help_and_recipes_answer_without_heavy_imports(arguments, tmp_path):
    loaded = modules_imported_by(*arguments, cwd=tmp_path)
    assert "typer" in loaded
    assert not loaded & {*HEAVY}
