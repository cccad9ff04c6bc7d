"""Every model, task and objective on the pretended accelerator: the CPU's numbers, the right device, few waits.

A tensor on the wrong device raises; `python -m tests.shadow.matrix` prints the whole matrix as a table.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import cudt
from cudt.utils.errors import DataWarning
from tests.shadow.cases import CASES, Case, write_data
from tests.shadow.device import active
from tests.shadow.matrix import Row, compute, header, line

#: Each model, task and objective at least once, adapters but once; the other rows are slow tests.
FAST = [
    Case("bert", "imdb", "linear decay"),
    Case("distilbert", "mnli", "log slack"),
    Case("roberta", "text", "supervised"),
    Case("modernbert", "text", "linear slack"),
    Case("unrolled", "reviews", "log decay"),
    Case("llama lora", "alpaca", "linear decay"),
    Case("llama", "alpaca", "erm"),
    Case("headed bert", "text", "log decay"),
    Case("headed llama", "stored", "linear slack"),
    Case("vit", "shapes", "log slack"),
    Case("dinov2 lora", "shapes", "log slack"),
    Case("dust", "folder", "log slack"),
    Case("unrolled_video", "shapes", "linear slack"),
]
#: What takes other paths through the code.
SETTINGS = [
    Case("bert", "text", "log slack", (("training.accumulation", 2), ("training.group_by_length", True))),
    Case("llama lora", "alpaca", "log decay", (("readout.tokens", 3), ("model.dtype", "bf16"))),
    Case("dust", "shapes", "log slack", (("descent.dual.optimizer", "nupi"), ("training.clip_norm", None))),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def faults(case: Case, row: Row) -> dict[str, object]:
    """What differs from the CPU, or makes it wait more often than it has to, by name."""
    found: dict[str, object] = {step: how for step, how in row.steps().items() if how not in ("", "same")}
    counted = row.counted
    # In the log form, a split batch needs its losses before the backward pass, too.
    needed = 2 if "training.accumulation" in dict(case.changes) else 1
    # Eigenvalues of DUST's dictionaries: torch waits to know whether they converged.
    needed += case.model == "dust"
    # Whatever is logged came with the update.
    allowed = {"update": needed, "log": 0, "batch": 1, "copies": 0}
    for name, number in allowed.items():
        if len(waits := getattr(counted, name)) != number:
            found[f"waits: {name}"] = [*map(str, waits)]
    return found


def faults_of(case: Case, root: Path, out: Path) -> dict[str, object]:
    with warnings.catch_warnings():
        # Twelve examples are too few for some checks of the data.
        warnings.simplefilter("ignore", DataWarning)
        return faults(case, compute(case, root, out))


def test_the_fast_rows_have_every_model_task_and_objective():
    for part in ("model", "task", "objective"):
        left = {getattr(case, part) for case in CASES} - {getattr(case, part) for case in FAST}
        assert left == ({"bert lora", "vit lora", "dinov2"} if part == "model" else set())
    assert set(FAST) <= set(CASES)


@pytest.mark.parametrize("case", FAST, ids=str)
def test_the_accelerator_gives_the_cpus_numbers(case, root, tmp_path):
    assert faults_of(case, root, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in FAST], ids=str)
def test_so_do_the_other_rows(case, root, tmp_path):
    assert faults_of(case, root, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", SETTINGS, ids=lambda case: case.changes[0][0])
def test_so_do_other_settings(case, root, tmp_path):
    assert faults_of(case, root, tmp_path) == {}


def test_bf16_trains_on_the_accelerator(root, tmp_path):
    case = Case("bert", "text", "log slack", (("training.precision", "bf16"), ("training.log_every", 1)))
    losses = {}
    for device in ("cpu", "shadow"):
        with active(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            run = cudt.train(case.recipe(root), tmp_path / device, device, root, quiet=True)
        history = run.read_table("history")
        losses[device] = history[history["name"] == "loss"]["value"].to_numpy()
        assert run.info().autocast == "bf16"
    # bf16 has eight bits, and the CPU's own kernels round in other places.
    assert losses["shadow"] == pytest.approx(losses["cpu"], rel=2**-6)


def test_every_fault_is_found():
    case, row = Case("bert", "imdb", "erm"), Row(update="same", validation="differs: history.csv")
    assert set(faults(case, row)) == {"validation", "waits: update", "waits: batch"}


def test_a_line_of_the_table_has_a_cell_for_each_title():
    made = line(Case("dust", "shapes", "erm"), Row(update="same"))
    assert made.startswith("| dust | shapes | erm | same |")
    assert made.count("|") == header().splitlines()[0].count("|") == header().splitlines()[1].count("|")
