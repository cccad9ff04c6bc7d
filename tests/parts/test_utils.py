"""Files, devices, processes, stop signals and texts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cudt.utils import device
from cudt.utils.errors import StopRequest, UserError
from cudt.utils.files import folder_next_to, replacing
from cudt.utils.workers import FAULT, Workers
from tests.processes import commands, environment, free_port


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        (temporary / "file" if temporary.is_dir() else temporary).write_text("half of the ne")
        raise error

    for context in (replacing, folder_next_to):
        with pytest.raises(error), context(path) as temporary:
            fail(temporary)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_auto_is_the_accelerator_if_there_is_one(monkeypatch):
    assert device.choose("auto") == device.choose("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="--device cuda: torch finds no CUDA device"):
        device.choose("cuda")
    with pytest.raises(UserError, match="--device mps: losses are measured in double precision"):
        device.choose("mps")
    monkeypatch.setattr(device, "accelerator", lambda: torch.device("xpu"))
    assert device.choose("auto") == device.choose("xpu") == torch.device("xpu")
    assert device.choose("cpu") == torch.device("cpu")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert device.choose("auto") == torch.device("cpu")


#: A torchvision whose compiled half did not load behaves as its wheel does beside another build of
#: torch.
BROKEN = """
import torch
@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets
healthy = True
"""


def test_a_mismatched_torchvision_is_survived(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(BROKEN)
    survive = "from cudt.utils.device import survive_torchvision_mismatch as s; s(); "
    command = [sys.executable, "-c", f"{survive}import torchvision; print(torchvision.healthy)"]
    assert subprocess.check_output(command, text=True, cwd=tmp_path).strip() == "True"


def test_every_process_has_a_device_of_its_own(monkeypatch):
    for name, value in environment(6, 8, free_port()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.accelerator.set_device_index", lambda index: None)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 4)
    monkeypatch.setattr(device, "accelerator", lambda: torch.device("xpu"))
    assert device.choose("auto").index == device.choose("xpu").index == 2
    assert device.choose("cpu").type == "cpu"


def test_other_commands_run_in_one_process(tmp_path):
    first, second = commands(2, "report", tmp_path)
    assert first.code == second.code == 2
    assert first.errors.startswith("error: cudt report: runs in one process")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_kept_and_a_ctrl_c_after_it_acts(number):
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.requested
        for again in (number, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), again)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.signal_number == number
    assert signal.getsignal(signal.SIGTERM) == before


def obey(word: str) -> int:
    """Behave as a word says, in a worker."""
    print(os.environ["PLANTED"], flush=True)
    if word == "fault":
        raise OSError(28, "No space left on device", "ood.csv")
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"code": 75, "crash": 0}[word] or int("crash")


@pytest.mark.parametrize(
    ("word", "code"), [("code", 75), ("crash", 1), ("fault", FAULT), ("killed", -9)]
)
def test_a_workers_end_is_seen_and_its_job_is_in_no_process_list(tmp_path, word, code):
    with Workers([{"PLANTED": "seen"}], tmp_path, obey, word) as workers:
        (process,) = workers._running.values()
        assert word.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        (ended,) = workers.wait(60)
    assert (ended.worker, ended.code) == (0, code)
    assert ended.log.read_text().startswith("seen\n")
    assert str(ended.log) in ended.how
