"""What the doctor's tests share: a probe with planted answers, and what a check says."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudt.cli import main as cli
from cudt.doctor import Check, Diagnosis, Scope
from cudt.doctor.probe import Facts, Probe

#: torch on a machine without a GPU.
ON_CPU: Facts = {
    "version": "2.13.0",
    "cuda_build": None,
    "accelerator": None,
    "devices": [],
    "threads": 1,
    "warnings": [],
}
ON_GPU: Facts = {
    **ON_CPU,
    "cuda_build": "12.8",
    "accelerator": "cuda",
    "devices": [{"name": "NVIDIA A100", "memory": 40 * 2**30, "bf16": True}],
}


class Planted(Probe):
    """A probe that starts no process."""

    def __init__(self, torch: Facts = ON_CPU, torchvision: Facts | None = None) -> None:
        self._planted = {"torch": torch, "torchvision": torchvision or {"version": None}}

    def torch(self) -> Facts:
        return self._planted["torch"]

    def torchvision(self) -> Facts:
        return self._planted["torchvision"]


def scope(*folders: Path, torch: Facts = ON_CPU, torchvision: Facts | None = None, **more: Any) -> Scope:
    return Scope(folders, probe=Planted(torch, torchvision), **more)


def found(check: Check, examined: Scope) -> list[Diagnosis]:
    return list(check.run(examined))


def bad(check: Check, examined: Scope) -> list[Diagnosis]:
    """What is not in order."""
    return [one for one in found(check, examined) if one.severity in ("warning", "problem")]


@pytest.fixture
def call_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """A command line that must succeed, in this process."""

    def run(command: str) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code

    return run
