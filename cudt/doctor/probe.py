"""What torch and torchvision say about themselves, asked in a process of its own: importing them may fail or crash.

The process prints a line of JSON for each of them.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import warnings
from typing import Any

#: Seconds that importing torch may take on a busy machine with a slow disk.
_PATIENCE = 120.0
Facts = dict[str, Any]


class Probe:
    """Starts to ask at once, so that other checks can run meanwhile."""

    def __init__(self) -> None:
        # The path of this process, so that the same torch is imported, and not a file in the current folder.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer; answer()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def torch(self) -> Facts:
        """Version, builds and devices of torch; `error` says why it cannot be imported."""
        return self._answers.get("torch") or {"error": self._end}

    def torchvision(self) -> Facts:
        """The version of torchvision, or `error`; empty if it is not installed."""
        return self._answers.get("torchvision") or {"error": self._end}

    @functools.cached_property
    def _output(self) -> tuple[str, str]:
        try:
            return self._process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "", f"no answer within {_PATIENCE:.0f} seconds"

    @property
    def _answers(self) -> dict[str, Facts]:
        lines = self._output[0].splitlines()
        return {key: value for line in lines if line.startswith("{") for key, value in json.loads(line).items()}

    @property
    def _end(self) -> str:
        """How the process ended without an answer."""
        last = (self._output[1].strip().splitlines() or [""])[-1]
        return last or f"the process ended with exit code {self._process.returncode}"


def answer() -> None:
    """What the process does."""
    print(json.dumps({"torch": examine_torch()}), flush=True)
    print(json.dumps({"torchvision": examine_torchvision()}), flush=True)


def examine_torch() -> Facts:
    """Version, builds and devices of torch."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            import torch
        except Exception as error:
            return {"error": _line(error)}
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        kind = None if found is None else found.type
        return {
            "version": torch.__version__,
            "cuda_build": torch.version.cuda or torch.version.hip,
            "accelerator": kind,
            "devices": _cuda_devices() if kind == "cuda" else [],
            "threads": torch.get_num_threads(),
            "warnings": [str(one.message).strip().splitlines()[0] for one in raised],
        }


def _cuda_devices() -> list[Facts]:
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found.append({"name": facts.name, "memory": facts.total_memory, "bf16": facts.major >= 8})
    return found


def examine_torchvision() -> Facts:
    """The version of torchvision; empty if it is not installed. Its compiled part needs the torch it was built for."""
    import importlib.util

    if importlib.util.find_spec("torchvision") is None:
        return {"version": None}
    try:
        import torchvision
    except Exception as error:
        return {"error": _line(error)}
    return {"version": torchvision.__version__}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}"
