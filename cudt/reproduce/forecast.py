"""How long the rest of a reproduction takes, by what was measured and by the workers that are alive."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cudt.reproduce.queues import ExperimentQueues
from cudt.sweep.holder import counted
from cudt.sweep.queue import TrialQueue
from cudt.utils.progress import duration

#: Seconds for which an answer stays valid: the display asks several times a second.
_VALID = 2.0


class Forecast:
    """Says how long the rest takes. `planned` has the expected seconds of a trial of each experiment."""

    def __init__(self, experiments: Sequence[ExperimentQueues], planned: Sequence[float]) -> None:
        self._experiments, self._planned = experiments, planned
        self._text, self._made = "", 0.0

    def __call__(self) -> str:
        if time.monotonic() - self._made > _VALID:
            self._text, self._made = self._forecast(), time.monotonic()
        return self._text

    def _forecast(self) -> str:
        holders = [
            trial.holder
            for one in self._experiments
            for queue in one.queues
            for trial in queue.known()
            if trial.state == "running" and trial.holder is not None
        ]
        workers = {(holder["machine"], holder["process"]) for holder in holders}
        if not workers:
            return ""
        crew = counted(len(workers), [holder["host"] for holder in holders])
        return f"about {duration(self.seconds() / len(workers))} left with {crew}"

    def seconds(self) -> float:
        """Worker time of everything that has not ended."""
        total = 0.0
        for one, planned in zip(self._experiments, self._planned, strict=True):
            for queues in (one.studies, [source.queue for source in one.others]):
                total += sum(queue.n_left for queue in queues) * _mean(queues, planned)
        return total


def _mean(queues: Sequence[TrialQueue], planned: float) -> float:
    """Mean seconds of the finished trials; the planned ones before any has finished."""
    measured = [
        trial.facts.get("seconds", 0.0) for queue in queues for trial in queue.known() if trial.score is not None
    ]
    return sum(measured) / len(measured) if measured else planned
