"""The programs in examples/: they run as they are, and do what docs/your-model.md says."""

from __future__ import annotations

import difflib
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from cudt.cli.main import app

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
EPOCH = re.compile(r"epoch \d+: layer losses tensor\(\[(.*?)\]\), multipliers tensor\(\[(.*?)\]\)")


def run(name: str) -> dict[str, Any]:
    """The variables of a program after its end."""
    return runpy.run_path(str(EXAMPLES / "integrations" / name))


@pytest.mark.parametrize("name", ["own_model.py", "pytorch_loop.py"])
def test_a_loop_prints_losses_and_multipliers_of_all_layers(name, capsys):
    run(name)
    printed = [
        [[float(value) for value in values.split(",")] for values in epoch]
        for epoch in EPOCH.findall(capsys.readouterr().out)
    ]
    assert len(printed) == 10
    assert all(len(losses) == len(multipliers) == 4 for losses, multipliers in printed)
    assert max(value for _, multipliers in printed for value in multipliers) > 0.05
    last, _ = printed[-1]
    assert last[0] > last[-1]


def test_the_constraints_are_five_lines():
    """Five lines are new and one is replaced, apart from blank ones, docstrings and prints."""
    plain, constrained = (
        [line for line in text.splitlines() if line and not re.match(r'\s*(print\(|""")', line)]
        for text in (
            (EXAMPLES / "integrations" / name).read_text(encoding="utf-8")
            for name in ("plain_loop.py", "pytorch_loop.py")
        )
    )
    changes = [line[0] for line in difflib.ndiff(plain, constrained)]
    assert (changes.count("+"), changes.count("-")) == (5, 1)
    run("plain_loop.py")


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
