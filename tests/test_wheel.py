from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from cudt.config import recipe
from cudt.sweep import definition

ROOT = Path(__file__).parents[1]
#: Prints where an installed cudt finds its files, from a folder that is not a checkout.
LISTED = """
import json
from cudt.config import plugins, recipe
from cudt.report import paper
from cudt.sweep import definition
kinds = {kind: plugins.names(kind) for kind in plugins.BUILT_IN}
print(json.dumps([recipe.names(), definition.names(), str(recipe.folder()), str(paper.folder()), kinds]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    builder = pytest.importorskip(
        "hatchling.builders.wheel", reason="building a wheel needs hatchling"
    )
    folder = tmp_path_factory.mktemp("built")
    return Path(
        next(builder.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))
    )


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the unpacked wheel."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_a_wheel_has_every_file_of_the_package_and_every_recipe(installed):
    package = {path.relative_to(ROOT) for path in (ROOT / "cudt").rglob("*") if path.is_file()}
    expected = {path for path in package if "__pycache__" not in path.parts}
    for source, inside in (("recipes", "cudt/recipes"), ("data/paper", "cudt/paper")):
        files = [path for path in (ROOT / source).rglob("*") if path.is_file()]
        expected |= {Path(inside) / path.relative_to(ROOT / source) for path in files}
    assert {path for path in expected if not (installed / path).is_file()} == set()
    assert {
        Path("cudt/py.typed"),
        Path("cudt/report/page.html"),
        Path("cudt/paper/rmse.csv"),
    } <= expected


def test_an_installed_wheel_finds_its_recipes_searches_plug_ins_and_published_numbers(
    installed, tmp_path
):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", LISTED],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    recipes, searches, recipe_folder, published_folder, plugins = json.loads(done.stdout)
    assert (recipes, searches) == (recipe.names(), definition.names())
    assert Path(recipe_folder) == installed / "cudt" / "recipes"
    assert (Path(published_folder) / "rmse.csv").is_file()
    assert str(published_folder).startswith(str(installed))
    assert all(plugins.values())


@pytest.mark.slow
def test_cudt_runs_from_the_wheel_in_an_environment_of_its_own(wheel, tmp_path):
    """Installed by pip, outside the repository; other packages are those of this environment."""
    home = tmp_path / "environment"
    venv.create(home)
    (packages,) = home.glob("lib/python*/site-packages")
    # Without its .pth files: they would bring an editable cudt along.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        f"--python={home / 'bin' / 'python'}",
        "install",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)

    outside = tmp_path / "outside"
    outside.mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CUDT"))
    }

    def run(program: str, *arguments: str) -> str:
        command = [str(home / "bin" / program), *arguments]
        done = subprocess.run(
            command, cwd=outside, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("python", "-c", "import cudt; print(cudt.__file__)").startswith(str(home))
    assert run("cudt", "--version").strip() in wheel.name
    assert "imdb-minilm" in run("cudt", "recipes")
    run("cudt", "train", "--recipe", "smoke-text", "--out", "runs")
    (trained,) = outside.rglob("run.json")
    assert json.loads(trained.read_text())["status"] == "finished"
