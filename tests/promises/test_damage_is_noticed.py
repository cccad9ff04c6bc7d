"""Files of finished runs with cut ends and flipped bits are noticed, and nothing replaces them; what
a killed writer leaves is read as before.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from cudt.evaluation.evaluate import Grid, check, evaluate_ood, missing
from cudt.report import frames
from cudt.runs.run import EXAMPLES, open_run
from cudt.training.checkpoint import load_weights
from cudt.utils.errors import DamagedFileError, DataWarning, UserError
from cudt.utils.text import track

_GRID = Grid(gammas=[0.0, 1.0], perturbations=["gaussian", "uniform"], exits=True)


def evaluate(path: Path) -> None:
    run = open_run(path)
    check(run, _GRID)
    evaluate_ood(run, _GRID, "cpu", None, track)


@pytest.fixture(scope="module")
def evaluated(trained_run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "run"
    shutil.copytree(trained_run.path, path)
    evaluate(path)
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
            found.scores(0, "gaussian")
            load_weights(open_run(run))
        except UserError as error:
            return str(error)
    return " ".join([*map(str, found.warnings), *(str(one.message) for one in warned)])


FILES = ["run.json", "recipe.yaml", "ood.csv", "layers.csv", "history.csv", EXAMPLES]


@pytest.mark.parametrize("name", [*FILES, "checkpoints/best.safetensors"])
def test_a_damaged_file_is_named(run: Path, name: str) -> None:
    content = (run / name).read_bytes()
    assert said_about(run) == ""
    for damaged in damages(content):
        (run / name).unlink()
        (run / name).write_bytes(damaged)
        assert f"{name}: damaged" in said_about(run)


@pytest.mark.parametrize("name", ["ood.csv", "layers.csv", EXAMPLES])
def test_an_evaluation_of_a_damaged_run_replaces_nothing(run: Path, name: str) -> None:
    (run / name).write_bytes((run / name).read_bytes()[:-20])
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(DamagedFileError, match=name):
        evaluate(run)
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["ood.csv", EXAMPLES])
def test_a_deleted_table_is_evaluated_again(run: Path, name: str) -> None:
    before = (run / name).read_bytes()
    assert missing(open_run(run), _GRID) == {}
    (run / name).unlink()
    assert {"gaussian", "uniform"} <= {*missing(open_run(run), _GRID)}
    evaluate(run)
    assert (run / name).read_bytes() == before
    (run / "layers.csv").unlink()
    with pytest.raises(DamagedFileError, match=r"layers\.csv: damaged \(missing\)"):
        evaluate(run)


def test_a_file_is_accepted_at_every_moment_of_its_replacement(run: Path, monkeypatch) -> None:
    opened = open_run(run)
    table, real, seen = opened.read_table("ood"), Path.replace, []

    def replace(source: Path, target: Path) -> None:
        # Before and after each rename, of run.json too.
        seen.append(len(opened.read_table("ood")))
        real(source, target)
        seen.append(len(opened.read_table("ood")))

    monkeypatch.setattr(Path, "replace", replace)
    opened.write_table("ood", table.iloc[:2])
    assert seen == [len(table)] * 3 + [2] * 3


def test_a_first_file_of_a_killed_writer_was_never_written(run: Path, monkeypatch) -> None:
    def killed(source: Path, target: Path) -> Path:
        if target.name == "new.json":
            raise KeyboardInterrupt
        return real(source, target)

    opened, real = open_run(run), Path.replace
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt), opened.replacing("new.json") as temporary:
        temporary.write_text("[]")
    opened.check("new.json")
    with pytest.raises(FileNotFoundError):
        opened.read("new.json")
