"""Several processes that do one command's work together, as torchrun or accelerate launch starts
them: which one this is, and what they send each other where there is no Accelerator.

Process 0 is the main one: it prints and writes files. In a process that is alone these functions do
nothing, and torch is not imported. A process that fails ends alone, and the launcher ends the rest.
"""

from __future__ import annotations

import os
from datetime import timedelta

#: How long a process waits for the others, of which one may prepare data for hours.
_PATIENCE = timedelta(days=1)


def count() -> int:
    """The number of processes that work together."""
    return int(os.environ.get("WORLD_SIZE", 1))


def index() -> int:
    """The number of this process."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def is_main_process() -> bool:
    """Whether this process prints and writes files."""
    return index() == 0


def join() -> None:
    """Connect the processes that were launched together; the first call waits for all of them."""
    if count() == 1:
        return
    import torch.distributed as dist

    if not dist.is_initialized():
        # Without a backend: gloo for the CPU and, if there is an accelerator, its own for that.
        dist.init_process_group(timeout=_PATIENCE)


def leave() -> None:
    """Disconnect; for the end of a command in which nothing went wrong."""
    if count() > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
