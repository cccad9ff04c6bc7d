from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cudt.doctor import device, probe
from cudt.doctor.probe import Probe
from tests.doctor.conftest import ON_CPU, ON_GPU, bad, found, scope

NEEDS_DRIVER = {**ON_CPU, "cuda_build": "12.8", "warnings": ["CUDA initialization: The NVIDIA driver is too old"]}


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A machine with an NVIDIA card and no driver."""
    folder = tmp_path / "0000:01:00.0"
    folder.mkdir()
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x030200\n")
    monkeypatch.setattr(device, "_PCI", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def no_card(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "_PCI", tmp_path)
    monkeypatch.setattr(device, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_torch_that_cannot_be_imported_is_a_problem_and_nothing_else_is_said():
    (one,) = found(device.CHECK, scope(torch={"error": "ModuleNotFoundError: No module named 'torch'"}))
    assert one.severity == "problem"
    assert one.title == "torch cannot be imported: ModuleNotFoundError: No module named 'torch'"


def test_without_a_card_the_cpu_is_in_order(no_card):
    assert [one.severity for one in found(device.CHECK, scope())] == ["ok"]


def test_a_build_for_the_cpu_next_to_a_card_is_a_warning(card):
    (one,) = found(device.CHECK, scope())
    assert (one.severity, "build for the CPU" in one.title) == ("warning", True)


def test_a_driver_that_is_missing_or_too_old_is_a_problem(card):
    (one,) = found(device.CHECK, scope(torch=NEEDS_DRIVER))
    assert one.severity == "problem"
    assert one.title.endswith("CUDA 12.8 cannot use the NVIDIA GPU: CUDA initialization: The NVIDIA driver is too old")


def test_devices_that_are_hidden_are_a_note(card, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert found(device.CHECK, scope(torch=NEEDS_DRIVER))[0].severity == "note"


def test_gpus_are_named_and_old_ones_have_no_bf16(card):
    assert found(device.CHECK, scope(torch=ON_GPU))[0].title == "torch 2.13.0 on NVIDIA A100 (40 GB)"
    old = {**ON_GPU, "devices": [{"name": "Tesla V100", "memory": 16 * 2**30, "bf16": False}]}
    assert found(device.CHECK, scope(torch=old))[0].severity == "note"


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_other_accelerators_are_in_order_but_mps_is_not_used(kind):
    (one,) = found(device.CHECK, scope(torch={**ON_CPU, "accelerator": kind}))
    assert one.severity == ("note" if kind == "mps" else "ok")


def test_a_torchvision_that_cudt_survives_is_a_warning_any_other_a_problem(no_card):
    survived = {"error": "RuntimeError: operator torchvision::nms does not exist"}
    assert bad(device.CHECK, scope(torchvision=survived))[0].severity == "warning"
    broken = {"error": "ImportError: libcudart.so.12: cannot open shared object file"}
    assert bad(device.CHECK, scope(torchvision=broken))[0].severity == "problem"
    assert not bad(device.CHECK, scope(torchvision={"version": "0.28.0"}))


# ---------------------------------------------------------------- the probe


START = subprocess.Popen


def probed(monkeypatch, code: str) -> Probe:
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: START([sys.executable, "-c", code], **options))
    return Probe()


def test_the_probes_answers_are_read_and_a_crash_between_them_is_the_seconds_error(monkeypatch):
    code = f"import os; print({json.dumps({'torch': ON_CPU})!r}, flush=True); os.abort()"
    asked = probed(monkeypatch, code)
    assert asked.torch() == ON_CPU
    assert asked.torchvision()["error"]


def test_a_probe_without_an_answer_says_how_it_ended(monkeypatch):
    assert probed(monkeypatch, "raise SystemExit('no disk')").torch() == {"error": "no disk"}
    assert probed(monkeypatch, "raise SystemExit(3)").torch() == {"error": "the process ended with exit code 3"}


def test_a_file_in_the_current_folder_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: commands.append(command))
    Probe()
    # Importing torch would take seconds; finding it is enough.
    find = (
        commands[0][2].partition("from ")[0] + "from importlib.util import find_spec; print(find_spec('torch').origin)"
    )
    with START([sys.executable, "-c", find], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0].strip().endswith("torch/__init__.py")


def test_a_probe_that_crashes_says_so(monkeypatch):
    assert "exit code -11" in probed(monkeypatch, "import os; os.kill(os.getpid(), 11)").torch()["error"]


def test_a_probe_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(probe, "_PATIENCE", 0.2)
    assert "no answer within" in probed(monkeypatch, "import time; time.sleep(60)").torch()["error"]


def test_the_probe_knows_this_torch_and_survives_one_that_cannot_be_imported(monkeypatch):
    import torch

    facts = probe.examine_torch()
    assert (facts["version"], facts["threads"]) == (torch.__version__, torch.get_num_threads())
    monkeypatch.setitem(sys.modules, "torch", None)
    assert probe.examine_torch()["error"].startswith("ModuleNotFoundError")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert set(probe.examine_torchvision()) <= {"error", "version"}
