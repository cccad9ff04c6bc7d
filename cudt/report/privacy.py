"""privacy.csv in reports: which δ the figure and the claim about privacy are for."""

from __future__ import annotations

from collections.abc import Sequence

from cudt.report.collect import ReadRun


def deltas(runs: Sequence[ReadRun]) -> set[float]:
    """Every δ that all of the runs have rows for."""
    if not all(run.has_table("privacy") for run in runs):
        return set()
    return set.intersection(*(set(run.run.read_table("privacy")["delta"].tolist()) for run in runs))


def shared_delta(groups: Sequence[Sequence[ReadRun]]) -> float | None:
    """The smallest δ that most of the groups have; None without any."""
    each = [deltas(runs) for runs in groups]
    counts = [(sum(delta in mine for mine in each), -delta) for delta in set().union(*each)]
    return -max(counts)[1] if counts else None
