"""The programs and the notebook in examples/: they run as they are, and do what docs/your-model.md says."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from cudt.cli.main import app
from cudt.config import recipe
from tests.conftest import train_quietly

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
EPOCH = re.compile(r"epoch \d+: layer losses tensor\(\[(.*?)\]\), multipliers tensor\(\[(.*?)\]\)")


def run(name: str) -> dict[str, Any]:
    """The variables of a program after its end."""
    return runpy.run_path(str(EXAMPLES / "integrations" / name))


@pytest.mark.parametrize("name", ["own_model.py", "pytorch_loop.py"])
def test_a_loop_prints_losses_and_multipliers_of_all_layers(name, capsys):
    run(name)
    epochs = EPOCH.findall(capsys.readouterr().out)
    printed = np.array([[values.split(",") for values in epoch] for epoch in epochs], dtype=float)
    assert printed.shape == (10, 2, 4)
    assert printed[:, 1].max() > 0.05
    assert printed[-1, 0, 0] > printed[-1, 0, -1]


def test_the_trainer_program_prints_a_verdict(capsys):
    verdicts = run("descent_trainer.py")["trainer"].verdicts
    printed = capsys.readouterr().out
    assert len(verdicts) == 4
    rows = [rf"{one.layer} .* {one.loss:.4g} .* {one.verdict} " for one in verdicts]
    assert all(re.search(row, printed) for row in rows)
    # It learned something, and so did the layers on the way.
    assert verdicts[-1].loss < 0.6 < verdicts[0].loss


def test_the_batch_script_of_the_workers_runs_a_command_that_exists():
    script = EXAMPLES / "cluster" / "workers.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    (line,) = re.findall(r"(cudt sweep .*?) \|\|", script.read_text(encoding="utf-8"))
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), "sweep")  # type: ignore[attr-defined]
    assert command.make_context("sweep", shlex.split(line)[2:]).params["join"]


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_draws(tmp_path, monkeypatch):
    nbclient, nbformat = map(pytest.importorskip, ("nbclient", "nbformat"))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = nbformat.read(EXAMPLES / "notebooks" / "quick-start.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(made, timeout=600, resources=where).execute()
    outputs = [output for cell in made.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3


@pytest.mark.slow
def test_in_the_demo_the_constrained_run_descends_at_every_layer_and_erm_does_not(tmp_path):
    for objective in ("constrained", "erm"):
        info = train_quietly(
            recipe.load("reviews-ut", objective=objective), tmp_path
        ).finished_info()
        assert info.feasible == info.monotone == (objective == "constrained")
        assert info.verdicts[-1].loss < info.reference / 2
