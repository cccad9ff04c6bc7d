"""An installed wheel: it has every file, and finds its recipes and the paper's numbers outside of a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cudt.config import recipe

ROOT = Path(__file__).parents[2]
#: Prints where an installed cudt finds its files.
LISTED = """
import json
from cudt.config import recipe
from cudt.report import paper
print(json.dumps([recipe.names(), recipe.names("search"), str(paper.folder())]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the unpacked wheel."""
    wheels = pytest.importorskip("hatchling.builders.wheel")
    folder = tmp_path_factory.mktemp("wheel")
    builder = wheels.WheelBuilder(str(ROOT))
    with zipfile.ZipFile(next(builder.build(directory=str(folder)))) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


def test_a_wheel_has_every_file_of_the_package_and_every_recipe(installed):
    sources = {"cudt": "cudt", "recipes": "cudt/recipes", "data/paper": "cudt/paper"}
    for source, inside in sources.items():
        for path in (ROOT / source).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (installed / inside / path.relative_to(ROOT / source)).is_file(), path


def outside(installed: Path, folder: Path, *arguments: str) -> str:
    """What Python prints in another folder, where only the wheel's cudt can be imported."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_finds_its_recipes_searches_and_the_papers_numbers(installed, tmp_path):
    names, searches, paper = json.loads(outside(installed, tmp_path, "-c", LISTED))
    assert (names, searches) == (recipe.names(), recipe.names("search"))
    assert (installed / "cudt" / "paper" / "rmse.csv").is_file()
    assert Path(paper) == installed / "cudt" / "paper"


@pytest.mark.slow
def test_it_trains(installed, tmp_path):
    outside(installed, tmp_path, "-m", "cudt", "train", "--recipe", "smoke-text")
    (trained,) = tmp_path.rglob("run.json")
    assert json.loads(trained.read_text())["status"] == "finished"
