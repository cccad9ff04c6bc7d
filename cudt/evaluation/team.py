"""Evaluation by several processes: the main one leads and writes, the others compute their share of
the batches.

Results come back in the order of one process, batch by batch, so that tables and files are the same
to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cudt.data.loader import ALL, Share
from cudt.models.layer_losses import LayerwiseLosses
from cudt.utils import processes

Result = TypeVar("Result")
#: Computes the results of a share of some batches, one for each; it is sent to the other processes.
Work = Callable[[LayerwiseLosses, Share], Iterator[Result]]


def results(work: Work[Result], layerwise: LayerwiseLosses, total: int) -> Iterator[Result]:
    """The results of all `total` batches, in order; call it inside `led_by_main`."""
    if processes.count() == 1:
        return work(layerwise, ALL)
    processes.from_main(work)
    return itertools.islice(_rounds(work, layerwise), total)


@contextmanager
def led_by_main(layerwise: LayerwiseLosses) -> Iterator[bool]:
    """Whether this process leads, that is, evaluates and writes. The others have helped when they
    get the answer.
    """
    if not processes.is_main_process():
        while (work := processes.from_main(None)) is not None:
            for _ in _rounds(work, layerwise):
                pass
    yield processes.is_main_process()
    # Not after an error: the others may be at work, and end with this process.
    if processes.is_main_process():
        processes.from_main(None)


def _rounds(work: Work[Result], layerwise: LayerwiseLosses) -> Iterator[Result]:
    """The results of all processes, in rounds of one batch each; none in the others than the main
    one.
    """
    for mine in work(layerwise, (processes.index(), processes.count())):
        everyones = processes.gathered(mine)
        if processes.is_main_process():
            yield from everyones
