"""Files, devices, processes, stop signals and texts."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
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


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_file_is_whole_and_as_readable_as_any_other(tmp_path):
    write_text(tmp_path / "new" / "a.txt", "all of it")
    (tmp_path / "new" / "plain.txt").write_text("")
    assert (tmp_path / "new" / "a.txt").read_text() == "all of it"
    assert files(tmp_path / "new") == ["a.txt", "plain.txt"]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        (temporary / "file" if temporary.is_dir() else temporary).write_text("half of the ne")
        assert path.read_text() == "old"
        raise error

    for context in (replacing, folder_next_to):
        with pytest.raises(error), context(path) as temporary:
            fail(temporary)
    assert path.read_text() == "old"
    assert files(tmp_path) == ["a.txt"]


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


def test_tf32_is_used_on_cuda_only_and_only_inside():
    for asked, where, expected in ((True, "cuda", "high"), (True, "cpu", "highest")):
        with device.matmul_in(asked, torch.device(where)):
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == "highest"


#: A torchvision whose compiled half did not load behaves as its wheel does beside another build of
#: torch.
BROKEN = """
import torch
@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets
healthy = True
"""


def test_a_mismatched_torchvision_fails_alone_and_is_survived(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(BROKEN)
    survive = "from cudt.utils.device import survive_torchvision_mismatch as s; s(); "

    def run(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert "operator torchvision::nms does not exist" in run("import torchvision").stderr
    survived = run(f"{survive}import torchvision; print(torchvision.healthy)")
    assert survived.stdout.strip() == "True", survived.stderr


# ---------------------------------------------------------------- several processes


@pytest.mark.parametrize(
    "variables", [{"RANK": "1"}, {"LOCAL_RANK": "1"}, {"PMI_SIZE": "4", "PMI_RANK": "3"}]
)
def test_what_is_set_for_processes_that_work_alone_does_not_matter(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert device.accelerator_for("cpu", "fp32").num_processes == 1
    assert processes.is_main_process()
    assert variables.items() <= os.environ.items()


def test_every_process_has_a_device_of_its_own(monkeypatch):
    for name, value in environment(1, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    made: list[int] = []
    monkeypatch.setattr("torch.accelerator.set_device_index", made.append)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 4)
    monkeypatch.setattr(device, "accelerator", lambda: torch.device("xpu"))
    assert (device.choose("auto").index, device.choose("xpu").index) == (1, 1)
    monkeypatch.setenv("LOCAL_RANK", "6")
    assert device.choose("auto").index == 2
    assert device.choose("cpu").type == "cpu"
    assert made == [1, 1, 2]


def test_other_commands_run_in_one_process(tmp_path):
    first, second = commands(2, "report", tmp_path)
    assert first.code == second.code == 2
    assert first.errors.startswith("error: cudt report: runs in one process")


# ---------------------------------------------------------------- stop signals

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def received():
    """Handlers that note their signal, in place for a test."""
    noted: list[int] = []
    before = {one: signal.signal(one, lambda number, _: noted.append(number)) for one in SIGNALS}
    yield noted
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_kept_and_a_ctrl_c_after_it_acts(number, received):
    with StopRequest() as stop:
        assert not stop.requested
        for again in (number, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), again)
        assert stop.requested
        assert received == []
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
    assert stop.signal_number == number
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGINT, signal.SIGTERM]


def test_outside_the_main_thread_it_leaves_signals_alone():
    before = [signal.getsignal(number) for number in SIGNALS]

    def work() -> None:
        with StopRequest():
            assert [signal.getsignal(number) for number in SIGNALS] == before

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# ---------------------------------------------------------------- texts


def test_values_are_shortened_and_numbers_are_brief():
    assert text.shown("a\x1b[31m\nb") == repr("a\x1b[31m\nb")
    assert text.brief("one\ntwo") == "one two"
    assert len(text.shown("y" * 100_000)) == 80
    assert text.as_command("train", "--out", "my runs") == "cudt train --out 'my runs'"
    assert text.ranges([3, 1, 2, 5, 5]) == "1–3, 5"
    assert [*map(text.short_number, (0.5, 12.345, 1e5))] == ["0.5000", "12.35", "1e+05"]


def test_the_closest_name_is_suggested_also_for_long_words():
    assert text.did_you_mean("trian", ["train", "report"]) == "; did you mean 'train'?"
    assert text.did_you_mean("y" * 1_000_000, ["train", "report"]) == ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_only(is_terminal, capsys):
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
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    assert environments(3, "cpu") == [{"OMP_NUM_THREADS": "2"}] * 3
