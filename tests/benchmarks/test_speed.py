"""The speed benches: rounds, ratios, verdicts, and the table as CSV."""

from __future__ import annotations

import csv

import pytest

from benchmarks.speed import bench, table
from benchmarks.speed.bench import Bench, Outcome
from benchmarks.speed.table import Row

STEP = Bench("step", "our step ÷ theirs", 1.05, higher_is_better=False, measure=lambda setting: [])
SPEED = Bench(
    "speed", "our examples/s ÷ theirs", 1.7, higher_is_better=True, measure=lambda setting: []
)


def test_rounds_alternate_and_the_warm_up_is_not_counted():
    ticks, called = iter(range(100)), []
    ours, peer = bench.interleaved(
        lambda: called.append("ours"),
        lambda: called.append("peer"),
        rounds=2,
        clock=lambda: next(ticks),
    )
    assert called == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert (ours, peer) == ([1, 1], [1, 1])


def test_the_ratio_is_the_median_of_the_rounds():
    one = bench.compared([1.0, 2.0, 9.0], [1.0, 1.0, 3.0], "s")
    assert one.ratios == (1.0, 2.0, 3.0)
    assert (one.ratio, one.range, one.ours, one.peer) == (2.0, (1.0, 3.0), 2.0, 1.0)


@pytest.mark.parametrize(
    ("of", "ratio", "verdict"),
    [
        (STEP, 1.05, "reached"),
        (STEP, 1.06, "missed"),
        (SPEED, 1.7, "reached"),
        (SPEED, 1.69, "missed"),
    ],
)
def test_verdicts_follow_the_direction_of_the_goal(of, ratio, verdict):
    assert Row(of, Outcome(ratio, 1.0, "s")).verdict == verdict


def test_the_tables_hold_every_row(tmp_path):
    rows = [
        Row(STEP, Outcome(1.0, 2.0, "s", (0.4, 0.5, 0.6), "a note")),
        Row(SPEED, None, "no data"),
    ]
    table.write_csv(rows, tmp_path / "bench.csv")
    with (tmp_path / "bench.csv").open(encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert (first["ratio"], first["lowest"], first["highest"]) == ("0.5", "0.4", "0.6")
    assert (second["verdict"], second["note"]) == ("skipped", "no data")


def test_every_bench_loads_and_has_a_name_of_its_own():
    found = [bench.load(name) for name in bench.names()]
    assert len({one.name for one in found}) == len(found)
