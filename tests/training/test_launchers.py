"""`cudt train` as torchrun and accelerate launch start it, with an agent that watches over the
processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from cudt.runs.run import run_for
from tests.conftest import TINY, tiny_recipe, train_quietly

#: `cudt`, whose process 1 is killed after update 4.
CUDT = """
import os, signal, time
from cudt.training.display import PlainDisplay
shown = PlainDisplay.update
def update(self, view):
    shown(self, view)
    if os.environ["RANK"] == "1" and view.step == 4:
        print(f"killed at {time.time()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
PlainDisplay.update = update
from cudt.cli.main import main
main()
"""
LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    "accelerate": (
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes=2",
        "--main_process_port=0",
    ),
}


def launch(launcher: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "cudt_or_killed.py"
    script.write_text(CUDT)
    settings = [part for setting in TINY for part in ("--set", setting)]
    arguments = (
        "train",
        "--recipe",
        "reviews-ut",
        "--device",
        "cpu",
        *settings,
        "--out",
        str(folder),
    )
    return subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[launcher], str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("accelerate", marks=pytest.mark.slow)]
)
def test_a_killed_process_stops_the_others_and_the_run_resumes_on_one(launcher, tmp_path):
    run = run_for(tiny_recipe(), tmp_path)
    killed = launch(launcher, tmp_path)
    (line,) = (line for line in killed.stdout.splitlines() if line.startswith("killed at "))
    assert time.time() - float(line.split()[-1]) < 60
    assert killed.returncode == 1
    assert killed.stdout.count("training reviews-ut") == 1
    assert run.info().processes == 2
    train_quietly(tiny_recipe(), tmp_path)
    alone = train_quietly(tiny_recipe(), tmp_path / "alone").read_table("history")
    pd.testing.assert_frame_equal(run.read_table("history"), alone, rtol=1e-5, atol=1e-5)
