"""Every model, task and objective on the pretended accelerator: the CPU's numbers, the right device, few waits.

A tensor on the wrong device raises; `python -m tests.shadow.matrix` prints the whole matrix as a table.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from cudt.utils.errors import DataWarning
from tests.shadow.cases import CASES, Case, write_data
from tests.shadow.matrix import Row, compute, header, line

#: Each model, task and objective at least once; the other rows are slow tests.
FAST = [
    Case("bert", "imdb", "linear decay"),
    Case("distilbert", "mnli", "log slack"),
    Case("roberta", "text", "supervised"),
    Case("modernbert", "text", "linear slack"),
    Case("unrolled", "reviews", "log decay"),
    Case("llama lora", "alpaca", "linear decay"),
    Case("llama", "alpaca", "erm"),
    Case("vit", "shapes", "log slack"),
    Case("dust", "folder", "log slack"),
    Case("unrolled_video", "shapes", "linear slack"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def check(case: Case, row: Row) -> None:
    assert {step: found for step, found in row.steps().items() if found not in ("", "same")} == {}, case
    counted = row.counted
    assert len(counted.update) == 1, [*map(str, counted.update)]
    # Whatever is logged came with the update.
    assert counted.log == []
    assert len(counted.batch) == 1, [*map(str, counted.batch)]
    assert counted.copies == []


def run(case: Case, root: Path, out: Path) -> None:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        # Twelve examples are too few for some checks of the data.
        warnings.simplefilter("ignore", DataWarning)
        check(case, compute(case, root, out))


def test_the_fast_rows_have_every_model_task_and_objective():
    for part in ("model", "task", "objective"):
        assert {getattr(case, part) for case in FAST} == {getattr(case, part) for case in CASES}
    assert set(FAST) <= set(CASES)


@pytest.mark.parametrize("case", FAST, ids=str)
def test_the_accelerator_gives_the_cpus_numbers(case, root, tmp_path):
    run(case, root, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in FAST], ids=str)
def test_so_do_the_other_rows(case, root, tmp_path):
    run(case, root, tmp_path)


def test_a_line_of_the_table_has_a_cell_for_each_title():
    made = line(Case("dust", "shapes", "erm"), Row(update="same"))
    assert made.startswith("| dust | shapes | erm | same |")
    assert made.count("|") == header().splitlines()[0].count("|") == header().splitlines()[1].count("|")
