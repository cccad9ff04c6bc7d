"""Workarounds for incompatible versions of installed packages."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

# torch drops a library's registrations when the object is deleted, so it is kept here.
_kept_alive: list[Any] = []


def survive_torchvision_mismatch() -> None:
    """Make torchvision importable with a build of torch that its compiled operators do not support.

    torchvision's Python side registers fake kernels for `nms`; if its compiled side cannot be
    loaded (usually a CUDA wheel with a CPU torch) that operator has no schema and `import
    torchvision` fails, and with it every model class of transformers. Declaring the schemas first
    is enough for everything but the compiled operators themselves. Does nothing if torchvision
    works or is not installed.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    import torch

    try:
        import torchvision  # noqa: F401  (the import is the test)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept_alive.append(library)
        # A failed import leaves some of the package's modules in sys.modules.
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
