"""Files, devices, processes, stop signals and texts."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cudt.utils import device, processes, text
from cudt.utils.errors import StopRequest, UserError
from cudt.utils.files import folder_next_to, replacing, write_text
from cudt.utils.workers import FAULT, Workers, environments
from tests.processes import commands, environment, free_port

# ---------------------------------------------------------------- files


def test_a_written_file_is_whole_and_as_readable_as_any_other(tmp_path):
    write_text(tmp_path / "new" / "a.txt", "all of it")
    (tmp_path / "new" / "plain.txt").write_text("")
    assert (tmp_path / "new" / "a.txt").read_text() == "all of it"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()]
    assert modes == modes[:1] * 2


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


def test_an_error_names_the_file_that_is_written(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.txt'"):
        write_text(tmp_path / "a.txt", "a")


# ---------------------------------------------------------------- devices


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


# ---------------------------------------------------------------- several processes


def test_what_is_set_for_processes_that_work_alone_does_not_matter(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "PMI_RANK"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert device.accelerator_for("cpu", "fp32").num_processes == 1
    assert processes.is_main_process()
    assert (os.environ["LOCAL_RANK"], os.environ["PMI_SIZE"]) == ("3", "4")


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


# ---------------------------------------------------------------- stop signals


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


# ---------------------------------------------------------------- texts


def test_values_are_shortened_and_numbers_are_brief():
    assert len(text.shown("y" * 100_000)) == 80
    assert text.as_command("train", "--out", "my runs") == "cudt train --out 'my runs'"
    assert text.ranges([3, 1, 2, 5, 5]) == "1–3, 5"
    assert [*map(text.short_number, (0.5, 12.345, 1e5))] == ["0.5000", "12.35", "1e+05"]
    assert text.did_you_mean("trian", ["train", "report"]) == "; did you mean 'train'?"
    assert text.did_you_mean("y" * 1_000_000, ["train", "report"]) == ""


def test_a_bar_is_drawn_on_a_terminal_only(capsys):
    for is_terminal in (True, False):
        console = Console(force_terminal=is_terminal)
        assert [*text.track(range(3), 3, "a [b]", console)] == [0, 1, 2]
        assert ("a [b]" in capsys.readouterr().out) == is_terminal


# ---------------------------------------------------------------- workers


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


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    assert environments(3, "cpu") == [{"OMP_NUM_THREADS": "2"}] * 3
