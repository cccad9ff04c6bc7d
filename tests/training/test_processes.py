"""Training in several processes: the same step as in one, and one stop for all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from cudt.runs.find import find_runs, open_run
from cudt.training.checkpoint import load_last
from tests.conftest import TINY
from tests.training.test_stopping import STOPPING

RANKS = """
import sys
from pathlib import Path
import torch
from rich.console import Console
torch.set_num_threads(1)
from cudt.config import recipe
from cudt.runs.find import run_for
from cudt.utils.device import accelerator_for
from cudt.training.display import PlainDisplay
from cudt.models.assemble import assemble
from cudt.models.unrolled_network import UnrolledTransformer
from cudt.training.trainer import Trainer

loaded = recipe.load("reviews-ut", sys.argv[2:])
accelerator = accelerator_for("cpu", "fp32")
out = Path(sys.argv[1])
run = run_for(loaded, out)
trainer = Trainer(run, assemble(loaded, None, accelerator.device), accelerator, PlainDisplay(Console(quiet=True)))
trainer.primal.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
trainer.primal._full_rates = [0.1]
trainer.fit()
torch.save(trainer.descent.multiplier_values, out / f"multipliers-{accelerator.process_index}.pt")
"""


@pytest.mark.parametrize("settings", [("descent.alpha=0.5",), ("descent.alpha=0.5", "descent.form=log")])
def test_two_processes_train_as_one_and_hold_the_same_multipliers(tmp_path, settings):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    for name, count in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        command = [*(launcher if count > 1 else [sys.executable]), str(script), str(tmp_path / name), *TINY, *settings]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / "two" / f"multipliers-{rank}.pt") for rank in (0, 1))
    alone = torch.load(tmp_path / "one" / "multipliers-0.pt")
    assert torch.equal(first, second)
    assert torch.allclose(first, alone, atol=1e-4)
    assert alone.max() > 0
    weights = [load_file(next((tmp_path / name).rglob("best.safetensors"))) for name in ("one", "two")]
    assert all(torch.allclose(weights[0][key], weights[1][key], atol=1e-4) for key in weights[0])
    histories = [pd.read_csv(next((tmp_path / name).rglob("history.csv"))) for name in ("one", "two")]
    assert histories[0]["value"].tolist() == pytest.approx(histories[1]["value"].tolist(), abs=1e-4)


def torchrun(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=out, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def test_the_command_line_under_torchrun_speaks_once_and_ends_well(tmp_path):
    settings = [part for setting in TINY for part in ("--set", setting)]
    done = torchrun(tmp_path, "-m", "cudt", "train", "--recipe", "reviews-ut", "--device", "cpu", *settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("training reviews-ut") == 1
    assert done.stdout.count("epoch 2/2") == 1
    assert done.stdout.count("next: cudt eval-ood") == 1


ONE_RANK_STOPS = STOPPING.replace("if view.step ==", "if os.environ['RANK'] == '1' and view.step ==")


def test_a_stop_asked_of_one_process_stops_all_after_the_same_update(tmp_path):
    script = tmp_path / "stopping.py"
    script.write_text(ONE_RANK_STOPS)
    done = torchrun(tmp_path, str(script), str(tmp_path / "out"), "2", str(int(signal.SIGINT)), *TINY)
    assert done.returncode != 0
    assert "RuntimeError" not in done.stderr
    (path,) = find_runs([tmp_path / "out"])
    run = open_run(path)
    assert run.info().status == "interrupted"
    # Asked after update 2; the processes learn of it together, with the losses of the next one.
    assert load_last(run)["progress"]["step"] == 3
