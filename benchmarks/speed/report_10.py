"""A report over 10 runs against importing its libraries and reading the files of the runs once."""

from __future__ import annotations

from benchmarks.speed import report_speed
from benchmarks.speed.bench import Bench, Outcome, Setting


def measure(setting: Setting) -> list[Outcome]:
    return [report_speed.measure(setting, n_recipes=1, seeds=2, rounds=3, allowed=3)]


BENCH = Bench(
    name="report-10",
    what="`cudt report` over 10 runs, start-up included ÷ importing its libraries and reading every file once",
    # Replaced by 3 s ÷ the peer's time in the same run.
    goal=3.0,
    higher_is_better=False,
    measure=measure,
)
