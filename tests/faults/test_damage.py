"""Files of finished runs with cut ends and flipped bits are noticed, and an evaluation does not
replace them."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from cudt.evaluation import evaluate, notes
from cudt.evaluation.grid import Grid
from cudt.report import frames
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.training.checkpoint import load_weights
from cudt.utils.errors import DamagedFileError, DataWarning, UserError
from cudt.utils.progress import track

_LEVELS = Grid(gammas=[0.0, 1.0], perturbations=["gaussian", "uniform"])


@pytest.fixture(scope="module")
def evaluated(trained_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "run"
    shutil.copytree(trained_run.path, path)
    evaluate.evaluate_ood(open_run(path), _LEVELS, "cpu", None, track, with_exits=True)
    return path


@pytest.fixture
def run(evaluated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(evaluated, tmp_path / "run"))


def damages(content: bytes) -> list[bytes]:
    """The content cut off, empty, and with one bit flipped."""
    half = len(content) // 2
    return [content[:half], b"", content[:half] + bytes([content[half] ^ 4]) + content[half + 1 :]]


def said_about(run: Path) -> str:
    """The errors and warnings of reading the run for a report, and of loading its weights."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", DataWarning)
        try:
            found = frames.read([run])
            load_weights(open_run(run))
        except UserError as error:
            return str(error)
    return " ".join([*map(str, found.warnings), *(str(one.message) for one in warned)])


NAMES = [
    "run.json",
    "recipe.yaml",
    "checksums.json",
    "ood.csv",
    "layers.csv",
    "constraints.csv",
    "history.csv",
]


@pytest.mark.parametrize("name", [*NAMES, "checkpoints/best.safetensors"])
def test_a_damaged_file_is_named(run: Path, name: str) -> None:
    content = (run / name).read_bytes()
    assert said_about(run) == ""
    for damaged in damages(content):
        (run / name).unlink()
        (run / name).write_bytes(damaged)
        assert name in said_about(run)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def evaluate_again(run: Path) -> None:
    evaluate.evaluate_ood(open_run(run), _LEVELS, "cpu", None, track, with_exits=True)


@pytest.mark.parametrize(
    "name", ["ood.csv", "constraints.csv", "layers.csv", "examples.parquet", "exits.csv"]
)
def test_an_evaluation_of_a_damaged_run_replaces_nothing(run: Path, name: str) -> None:
    (run / name).write_bytes((run / name).read_bytes()[:-20])
    before = contents(run)
    with pytest.raises(DamagedFileError, match=name):
        evaluate_again(run)
    assert contents(run) == before


@pytest.mark.parametrize("name", ["ood.csv", "examples.parquet"])
def test_a_deleted_table_is_evaluated_again(run: Path, name: str) -> None:
    before = contents(run)
    assert notes.left(open_run(run), _LEVELS) == []
    (run / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: damaged \(missing\)"):
        open_run(run).check_file(name)
    assert notes.left(open_run(run), _LEVELS) == ["gaussian", "uniform"]
    evaluate_again(run)
    assert notes.left(open_run(run), _LEVELS) == []
    assert contents(run) == before
