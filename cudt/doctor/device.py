"""torch and torchvision, and the device that torch computes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.probe import Facts
from cudt.doctor.scope import Scope

_CPU = "training on the CPU works, but only small models are fast enough"
_DEVICES = Path("/dev")
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Whether torch works, fits torchvision, and uses the GPU of this machine."""
    torch = scope.probe.torch()
    if "error" in torch:
        yield Diagnosis(
            "problem",
            f"torch cannot be imported: {torch['error']}",
            "install it again: `make install`, or https://pytorch.org/get-started/locally for this machine's build",
        )
        return
    yield from _torchvision(torch, scope.probe.torchvision())
    yield _accelerator(torch)


def _torchvision(torch: Facts, found: Facts) -> Iterator[Diagnosis]:
    if "error" not in found:
        return
    # What cudt works around (utils/compat.py); other programs fail.
    is_survived = "torchvision::" in found["error"]
    consequence = "cudt works around it, other programs fail" if is_survived else "pretrained models cannot be loaded"
    yield Diagnosis(
        "warning" if is_survived else "problem",
        f"torchvision does not fit torch {torch['version']}: {found['error']}; {consequence}",
        "`pip uninstall torchvision` (cudt does not need it), or install the build for this torch",
    )


def _accelerator(torch: Facts) -> Diagnosis:
    kind, version = torch["accelerator"], f"torch {torch['version']}"
    if kind == "cuda":
        return _cuda(torch, version)
    if kind == "mps":
        return Diagnosis("note", f"{version}: cudt computes on the CPU, because MPS has no double precision", _CPU)
    if kind is not None:
        return Diagnosis("ok", f"{version} on {kind}")
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return Diagnosis("note", f"{version} on the CPU: CUDA_VISIBLE_DEVICES is empty", "unset it to use the GPU")
    if not has_nvidia_card():
        return Diagnosis("ok", f"{version} on the CPU; this machine has no NVIDIA GPU")
    if torch["cuda_build"] is None:
        return Diagnosis(
            "warning",
            f"{version} is a build for the CPU, but this machine has an NVIDIA GPU",
            "install the build for CUDA: https://pytorch.org/get-started/locally has the command",
        )
    reason = next((line for line in torch["warnings"] if "CUDA" in line or "driver" in line), "")
    return Diagnosis(
        "problem",
        f"{version} for CUDA {torch['cuda_build']} cannot use the NVIDIA GPU" + (f": {reason}" if reason else ""),
        "install or update the NVIDIA driver until `nvidia-smi` lists the GPU; a container needs --gpus all",
    )


def _cuda(torch: Facts, version: str) -> Diagnosis:
    devices = torch["devices"]
    names = ", ".join(f"{one['name']} ({one['memory'] / 2**30:.0f} GB)" for one in devices)
    if all(one["bf16"] for one in devices):
        return Diagnosis("ok", f"{version} on {names}")
    return Diagnosis(
        "note", f"{version} on {names}, without fast bf16", "leave training.precision and model.dtype at fp32"
    )


def has_nvidia_card() -> bool:
    """Whether the machine has a graphics card of NVIDIA, with or without a driver."""
    if any(_DEVICES.glob("nvidia[0-9]*")):
        return True
    return any(_text(card / "vendor") == _NVIDIA and _text(card / "class").startswith("0x03") for card in _cards())


def _cards() -> list[Path]:
    return list(_PCI.iterdir()) if _PCI.is_dir() else []


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


CHECK = Check("Torch and device", 20, check)
