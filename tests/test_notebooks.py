"""The notebook in examples/notebooks: short, stored without outputs, and it runs from top to
bottom."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def pictures(notebook: Any) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.fixture
def kernel(monkeypatch):
    """Settings of the kernel's process: this cudt, no network, one thread."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    for name, value in {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **offline}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_stored_without_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 20
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom_and_draws(path, kernel, tmp_path):
    notebook = read(path)
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert pictures(notebook) >= 2
