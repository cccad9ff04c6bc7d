from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cudt.cli import main as cli
from cudt.config import plugins
from cudt.data import frame_cache
from cudt.data.dataset_status import DatasetStatus
from cudt.data.text import HubSet
from cudt.tasks import datasets
from tests.tasks import parquet
from tests.videos import noise, write_frames

REAL = os.environ.get("CUDT_DATA_ROOT")
real_data = pytest.mark.skipif(
    not REAL, reason="needs real data: set CUDT_DATA_ROOT to the folder that holds it"
)
NAMES = [
    *("tatsu-lab/alpaca", "Avenue", "stanfordnlp/imdb plain_text", "nyu-mll/glue mnli"),
    *("ShanghaiTech", "UCSDped1", "UCSDped2"),
]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    """An empty data root in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDT_DATA_ROOT", raising=False)
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def data(*arguments: str | Path) -> str:
    """The output of `cudt data` on a narrow terminal."""
    done = CliRunner().invoke(
        cli.app, ["data", *map(str, arguments)], env={"COLUMNS": "40"}, catch_exceptions=False
    )
    assert done.exit_code == 0
    return done.output


def block(lines: list[str], name: str) -> list[str]:
    """The lines about one dataset."""
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{name} "))
    last = next(
        (n for n in range(first + 1, len(lines)) if not lines[n].startswith(" ")), len(lines)
    )
    return lines[first:last]


def write_walkway(root: Path) -> None:
    base = root / "ucsd" / "UCSD_Anomaly_Dataset.v1p2" / "UCSDped2"
    for clip in ("Train/Train001", "Train/Train002", "Test/Test001"):
        write_frames(base / clip, noise(0, 20, 8, 8))


# ---------------------------------------------------------------- available datasets


def test_every_dataset_is_listed_even_if_it_is_missing(root):
    assert [status.name for status in datasets.find(root)] == NAMES
    with_data = [
        name
        for name in plugins.names("task")
        if name not in ("folder", "reviews", "shapes", "text")
    ]
    assert all(hasattr(plugins.load("task", name), "datasets") for name in with_data)


def test_a_missing_dataset_is_reported_with_its_folder_and_source(root):
    lines = datasets.lines(root)
    for name in NAMES:
        heading, *problem = block(lines, name)
        assert heading.removeprefix(name).split()[0] == "missing"
        assert heading.split()[-1].startswith(str(root))
        assert len(problem) == 1
        assert "http" in problem[0] or "hf download" in problem[0]


@real_data
def test_the_real_datasets_are_found():
    found = {status.name: status for status in datasets.find(Path(str(REAL)))}
    for name in ("UCSDped2", "Avenue", "ShanghaiTech"):
        assert found[name].problem == ""
        assert list(found[name].parts) == ["train", "test"]


# ---------------------------------------------------------------- datasets of the hub


def hub_files(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.parquet").write_bytes(parquet(text=["one"], label=[0]))


def films(root: Path) -> DatasetStatus:
    return HubSet("owner/films", "plain").status(("train", "test"), root)


def test_a_dataset_of_the_hub_is_reported_with_its_files_by_split(root):
    hub_files(root / "films" / "plain", "train-00000-of-00002", "train-00001-of-00002", "test")
    assert films(root) == DatasetStatus(
        "owner/films plain", root / "films" / "plain", {"train": "2 files", "test": "1 file"}, ""
    )


@pytest.mark.parametrize("there", [[], ["train"]])
def test_an_incomplete_dataset_of_the_hub_is_reported_with_the_download_command(there, root):
    hub_files(root / "films" / "plain", *there)
    status = films(root)
    assert list(status.parts) == there
    command = f"`hf download owner/films --repo-type dataset --include 'plain/*' --local-dir {root}/films`"
    assert status.problem.startswith(command)
    assert status.problem.endswith(
        "without it, cudt reads the hub's cache or downloads when needed"
    )


# ---------------------------------------------------------------- preparing data


def video_recipe(folder: Path) -> Path:
    path = folder / "walk.yaml"
    path.write_text(
        "reproduces: nothing\nneeds: nothing\nexpect: nothing\n"
        "task: {name: ucsd, frames: 2, stride: 1}\nmodel: {name: dust, layers: 2}\n"
    )
    return path


def test_the_data_of_a_recipe_are_decoded_and_counted(root, tmp_path):
    write_walkway(root)
    printed = data("--prepare", video_recipe(tmp_path), "--data-root", "root")
    assert printed.splitlines() == [
        f"{tmp_path}/walk.yaml: 34 train, 2 validation, 10 test examples are ready"
    ]
    assert block(datasets.lines(root), "UCSDped2")[1:] == [
        "    train: 2 clips, 2 decoded to 160×160",
        "    test: 1 clip, 1 decoded to 160×160",
    ]
    assert len(list(frame_cache.folder().glob("*.json"))) == 3
