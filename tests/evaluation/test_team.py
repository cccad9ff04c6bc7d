"""Evaluation in several processes writes the files of one, byte by byte."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cudt.evaluation import evaluate
from cudt.evaluation.grid import Grid
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.training import train as training
from tests.cases import Case, write_data
from tests.conftest import quiet
from tests.processes import together


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def plainly(items: Any, total: int, what: str) -> Any:
    found = list(items)
    assert len(found) == total
    return found


def copied(run: Run, folder: Path) -> Run:
    return open_run(Path(shutil.copytree(run.path, folder)), run.other_weights)


def contents(run: Run) -> dict[str, bytes]:
    files = [path for path in run.results.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(run.results)): path.read_bytes() for path in files}


def evaluated(run: Run, root: Path | None, n_samples: int, with_exits: bool) -> None:
    with run.locked_by_main():
        evaluate.evaluate_ood(run, Grid(), "cpu", root, plainly, n_samples, with_exits=with_exits)


def assert_as_one(
    run: Run, work: Any, folder: Path, counts: tuple[int, ...] = (2, 3)
) -> dict[str, bytes]:
    """What `work` writes into copies of a run, in one process and in several."""
    alone = copied(run, folder / "1" / run.path.name)
    together(1, partial(work, alone))
    assert contents(alone) != contents(run)
    for count in counts:
        several = copied(run, folder / str(count) / run.path.name)
        together(count, partial(work, several))
        written = contents(several)
        assert written.keys() == contents(alone).keys()
        assert [name for name, content in contents(alone).items() if written[name] != content] == []
    return contents(alone)


# With 7 test examples in batches of 2, the last round is not full in 3 processes, and the last
# batch has one example.
ROWS = [
    pytest.param(
        Case("unrolled", "imdb", "linear decay", (("task.limit.test", 7),)), 0, True, id="texts"
    ),
    pytest.param(Case("dust", "folder", "erm"), 2, False, id="video", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("case", "n_samples", "with_exits"), ROWS)
def test_every_table_and_picture_is_that_of_one_process(
    case, n_samples, with_exits, root, tmp_path
):
    (path,) = together(
        1, lambda: training.train(case.recipe(root), tmp_path, "cpu", root, quiet()).path
    )
    run = open_run(path)
    work = partial(evaluated, root=root, n_samples=n_samples, with_exits=with_exits)
    written = assert_as_one(run, work, tmp_path)
    assert {
        "ood.csv",
        "layers.csv",
        "ratios.csv",
        "constraints.csv",
        "descent.csv",
        "examples.parquet",
    } <= {*written}
    assert ("exits.csv" in written) == with_exits
    assert any(name.startswith("samples/") for name in written) == bool(n_samples)
