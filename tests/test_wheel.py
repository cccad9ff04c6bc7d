from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
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
from cudt.config import recipe, registry
from cudt.report import published
from cudt.sweep import definition
kinds = {kind: registry.names(kind) for kind in registry.KINDS}
print(json.dumps([recipe.names(), definition.names(), str(recipe.folder()), str(published.folder()), kinds]))
"""


def build_wheel(source: Path, folder: Path) -> Path:
    wheel_builder = pytest.importorskip("hatchling.builders.wheel", reason="building a wheel needs hatchling")
    (wheel,) = wheel_builder.WheelBuilder(str(source)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The wheel of this checkout, the sdist, the unpacked sdist, and the wheel built from that."""
    sdist_builder = pytest.importorskip("hatchling.builders.sdist", reason="building a wheel needs hatchling")
    folder = tmp_path_factory.mktemp("built")
    (sdist,) = sdist_builder.SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheels = {}
    for name, source in {"wheel": ROOT, "wheel of sdist": unpacked}.items():
        wheels[name] = build_wheel(source, folder / name)
    return {**wheels, "sdist": Path(sdist), "unpacked": unpacked}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """A folder with the unpacked wheel."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(built["wheel"]) as archive:
        archive.extractall(target)
    return target


def test_the_sdist_has_every_file_of_the_repository_and_builds_the_same_wheel(built):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("this is no checkout")
    inside = {str(path.relative_to(built["unpacked"])) for path in built["unpacked"].rglob("*") if path.is_file()}
    assert {path for path in listed if (ROOT / path).is_file()} - inside == set()
    assert inside - set(listed) == {"PKG-INFO"}
    assert built["wheel"].read_bytes() == built["wheel of sdist"].read_bytes()


def test_the_list_of_parts_of_a_release_is_in_its_wheel(built, tmp_path):
    (built["unpacked"] / "cudt.cdx.json").write_text("{}")
    with zipfile.ZipFile(build_wheel(built["unpacked"], tmp_path)) as archive:
        (name,) = (name for name in archive.namelist() if "/sboms/" in name)
        assert name.endswith(".dist-info/sboms/cudt.cdx.json")
        assert archive.read(name) == b"{}"


def test_a_wheel_has_every_file_of_the_package_and_every_recipe(installed):
    package = {path.relative_to(ROOT) for path in (ROOT / "cudt").rglob("*") if path.is_file()}
    expected = {path for path in package if "__pycache__" not in path.parts}
    for source, inside in (("recipes", "cudt/recipes"), ("data/paper", "cudt/paper")):
        files = [path for path in (ROOT / source).rglob("*") if path.is_file()]
        expected |= {Path(inside) / path.relative_to(ROOT / source) for path in files}
    assert {path for path in expected if not (installed / path).is_file()} == set()
    assert {Path("cudt/py.typed"), Path("cudt/report/page.html"), Path("cudt/paper/rmse.csv")} <= expected


def test_an_installed_wheel_finds_its_recipes_searches_plug_ins_and_published_numbers(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", LISTED], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    recipes, searches, recipe_folder, published_folder, plugins = json.loads(done.stdout)
    assert (recipes, searches) == (recipe.names(), definition.names())
    assert Path(recipe_folder) == installed / "cudt" / "recipes"
    assert (Path(published_folder) / "rmse.csv").is_file()
    assert str(published_folder).startswith(str(installed))
    assert all(plugins.values())


@pytest.mark.slow
def test_cudt_runs_from_the_wheel_in_an_environment_of_its_own(built, tmp_path):
    """Installed by pip, outside the repository; other packages are those of this environment."""
    home = tmp_path / "environment"
    venv.create(home)
    (packages,) = home.glob("lib/python*/site-packages")
    # Without its .pth files: they would bring an editable cudt along.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", f"--python={home / 'bin' / 'python'}", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(built["wheel"])], check=True, capture_output=True)

    outside = tmp_path / "outside"
    outside.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CUDT"))}

    def run(program: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        command = [str(home / "bin" / program), *arguments]
        done = subprocess.run(command, cwd=outside, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in codes, done.stderr
        return done.stdout

    assert run("python", "-c", "import cudt; print(cudt.__file__)").startswith(str(home))
    assert run("cudt", "--version").strip() in built["wheel"].name
    assert "imdb-minilm" in run("cudt", "recipes")
    run("cudt", "train", "--recipe", "smoke-text", "--out", "runs")
    # 1 is a problem of the machine, such as a GPU without a driver.
    assert "Packages" in run("cudt", "doctor", codes=(0, 1))
    (trained,) = outside.rglob("run.json")
    assert json.loads(trained.read_text())["status"] == "finished"
