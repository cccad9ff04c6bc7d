"""Which numbers of workers are simulated, and in which situations."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.scale.workers import Case

#: Long trials for many workers: two trials a second in all, so that two cores can keep up with a thousand workers.
_HUNDRED, _THOUSAND = Case(100, 50, 20), Case(1000, 500, 40)
_AT_ONCE = Case(100, 300, 25, "together")
ALL = [
    Case(1, 2, 10),
    Case(10, 5, 15),
    _HUNDRED,
    Case(300, 150, 20),
    _THOUSAND,
    replace(_HUNDRED, trial_seconds=10),
    replace(_HUNDRED, queue="new"),
    replace(_HUNDRED, waiting=2000),
    replace(_HUNDRED, storage="grpc"),
    replace(_THOUSAND, storage="grpc"),
    *(replace(_AT_ONCE, workers=workers) for workers in (10, 30, 100)),
    replace(_AT_ONCE, shuffled=True),
    replace(_AT_ONCE, studies=4),
    # A thousand such workers do not even start on two cores that others use, too.
    *(replace(case, loop="cudt") for case in (_HUNDRED, Case(300, 150, 20))),
    replace(_AT_ONCE, studies=4, loop="cudt"),
    *(replace(_AT_ONCE, start="idle", studies=studies, loop="cudt") for studies in (1, 10)),
]
QUICK = [Case(1, 2, 5), Case(10, 5, 8), replace(_HUNDRED, seconds=10), Case(30, 300, 10, "together")]
