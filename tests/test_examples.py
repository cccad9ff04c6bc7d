"""The batch script in examples/cluster: it parses, and the command in it exists with its
options."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import typer

from cudt.cli.main import app

SCRIPT = Path(__file__).parent.parent / "examples" / "cluster" / "workers.sbatch"


def test_the_batch_script_of_the_workers_is_valid_and_runs_a_command_that_exists():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    (line,) = re.findall(r"(cudt sweep .*?) \|\|", SCRIPT.read_text(encoding="utf-8"))
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), "sweep")  # type: ignore[attr-defined]
    assert command.make_context("sweep", shlex.split(line)[2:]).params["join"]
