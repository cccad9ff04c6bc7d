"""Which numbers of workers are simulated, and in which situations."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.scale.workers import Case

#: Long trials for many workers, so that a machine on which a thousand workers share two cores can keep up.
_THOUSAND = Case(1000, 500, 40)
_HUNDRED = Case(100, 50, 25)
ALL = [
    Case(1, 2, 10),
    Case(10, 5, 15),
    _HUNDRED,
    Case(300, 150, 25),
    _THOUSAND,
    # The same workers, something else changed.
    replace(_HUNDRED, trial_seconds=10),
    replace(_HUNDRED, queue="new"),
    replace(_HUNDRED, waiting=2000),
    replace(_HUNDRED, studies=4),
    replace(_HUNDRED, heartbeat=5),
    replace(_HUNDRED, storage="grpc"),
    replace(_THOUSAND, queue="new"),
    replace(_THOUSAND, storage="grpc"),
    # The herd.
    *(Case(workers, 300, 25, "together") for workers in (10, 30, 100)),
    Case(100, 300, 25, "together", shuffled=True),
    Case(100, 300, 25, "together", studies=4),
]
QUICK = [Case(1, 2, 5), Case(10, 5, 8), replace(_HUNDRED, seconds=10), Case(30, 300, 10, "together")]
