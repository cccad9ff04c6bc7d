"""Things that installed packages get wrong together, and that a user should not have to know."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

# A library's registrations end with the object, so it has to outlive the call.
_kept_alive: list[Any] = []


def survive_torchvision_mismatch() -> None:
    """Make torchvision importable beside a build of torch that its compiled operators do not fit.

    torchvision's Python side registers fake kernels for `nms`; where its compiled side could not load (a CUDA
    wheel beside a CPU torch, most often) that operator has no schema and `import torchvision` fails, and with
    it every model class of transformers. Declaring the schemas first is enough for everything but the compiled
    operators themselves. Does nothing where torchvision works or is absent.
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
        # A failed import leaves half of the package behind.
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
