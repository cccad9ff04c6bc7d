"""Runs on a pretended accelerator, in a process of its own, have the CPU's files, and wait once an update.

A tensor that is left on the CPU, or a loss that is read in the middle of an update, shows here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cudt.config import recipe
from cudt.config.recipe import NamedRecipe
from tests.conftest import quiet, tiny_recipe

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
_ACCUMULATED = ("descent.form=log", "training.accumulation=3")
_SLACK = ("descent.resilience=slack", "descent.beta=1.0")


def recipes() -> dict[str, NamedRecipe]:
    few = ("task.train=8", "task.validation=2", "task.test=2", "training.epochs=1")
    video = (*few, "descent.warmup_epochs=0", "loading.workers=0", "evaluation.gammas=0,0.4")
    return {
        "text": tiny_recipe("loading.workers=0", *_SLACK),
        "accumulated": tiny_recipe("loading.workers=0", *_ACCUMULATED),
        "video": recipe.load("smoke-video", video),
    }


def compare(name: str, folder: Path) -> dict[str, Any]:
    """In the child: whether a run on the device has the CPU's files, and what two of its updates waited for."""
    from cudt import evaluate
    from cudt.runs.run import run_for
    from cudt.training import train as training
    from cudt.training.trainer import Trainer
    from cudt.utils.device import accelerator_for
    from tests.shadow_device import WAITS

    loaded = recipes()[name]
    files = []
    for device in ("cpu", "shadow"):
        run = training.train(loaded, folder / device, device, None, quiet())
        evaluate(run, device=device)
        files.append({path.name: path.read_bytes() for path in run.path.glob("*.*")})
    cpu, shadow = files
    names = ["examples.parquet", *(name for name in cpu if name.endswith(".csv"))]
    accelerator = accelerator_for("shadow", "fp32")
    objects = training.assemble(loaded, None, accelerator.device)
    trainer = Trainer(run_for(loaded, folder / "third"), *objects, accelerator, quiet())
    trainer._begin()
    updates = [update for update, _ in zip(trainer._remaining_updates(), range(2), strict=False)]
    WAITS.clear()
    for micro_batches in updates:
        trainer._update(micro_batches)
    return {
        "differ": [name for name in names if cpu[name] != shadow.get(name)],
        "waits": [*WAITS],
        "files": names,
    }


def in_new_process(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "allowed"), [("text", 1), ("accumulated", 2), ("video", 3)])
def test_a_run_on_an_accelerator_has_the_cpus_files_and_waits_once(name, allowed, tmp_path):
    """The log form waits once more for the weights of layers, DUST for the norms of dictionaries."""
    code = f"from tests.test_shadow_device import child; child({name!r}, {str(tmp_path)!r})"
    done = in_new_process(code)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"examples.parquet", "history.csv", "layers.csv", "ood.csv"} <= {*found["files"]}
    assert found["differ"] == []
    assert len(found["waits"]) == 2 * allowed, found["waits"]


def child(name: str, folder: str) -> None:
    # Before the first backward pass.
    import tests.shadow_device  # noqa: F401

    print(json.dumps(compare(name, Path(folder))))


def test_two_devices_are_not_mixed():
    code = "import torch, tests.shadow_device; torch.ones(2, device='shadow') + torch.ones(2)"
    assert "found shadow and cpu (aten::add.Tensor)" in in_new_process(code).stderr
