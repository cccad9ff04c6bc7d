"""A report over 500 runs against importing its libraries and reading the files of the runs once."""

from __future__ import annotations

from benchmarks.speed import report_speed
from benchmarks.speed.bench import Bench, Outcome, Setting


def measure(setting: Setting) -> list[Outcome]:
    return [report_speed.measure(setting, n_recipes=20, seeds=5, rounds=1, allowed=20)]


BENCH = Bench(
    name="report-500",
    what="`cudt report` over 500 runs, start-up included ÷ importing its libraries and reading every file once",
    # Replaced by 20 s ÷ the peer's time in the same run.
    goal=20.0,
    higher_is_better=False,
    measure=measure,
)
