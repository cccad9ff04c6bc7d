"""Run the speed benches, print their table, and write it as CSV.

    python -m benchmarks                  all benches (about 10 minutes)
    python -m benchmarks dust-step        one of them

Every row is a ratio: ours and the peer run by turns, each round gives a ratio, and the table shows
the median with the lowest and the highest. The clock is the CPU time of one thread, which other
programs on the machine change little. Each bench runs in a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import kernels, trainer
from benchmarks.bench import Bench, Outcome, SkippedError

BENCHES: dict[str, Bench] = {one.name: one for one in (*trainer.BENCHES, *kernels.BENCHES)}
COLUMNS = ("bench", "what", "ratio", "lowest", "highest", "goal", "verdict", "note")


def main() -> int:
    """Run the benches that are named, or all of them; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], help="all by default")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measured(BENCHES[given.child])))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    rows: list[dict[str, Any]] = []
    for name in given.names or BENCHES:
        console.print(f"{name} …")
        rows += in_a_process(BENCHES[name])
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "bench.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    table = Table("bench", "ratio", "range", "goal", "verdict", "note")
    for row in rows:
        cells = [
            row["bench"],
            row["ratio"],
            f"{row['lowest']}–{row['highest']}".strip("–"),
            row["goal"],
        ]
        table.add_row(*cells, row["verdict"], row["note"])
    console.print(table, f"wrote {given.out}/bench.csv")
    return int(any(row["verdict"] == "failed" for row in rows))


def in_a_process(bench: Bench) -> list[dict[str, Any]]:
    """The rows of a bench, measured by a child with one thread."""
    command = [sys.executable, "-m", "benchmarks", "--child", bench.name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        return [row(bench, note=f"exit code {ended.returncode}", verdict="failed")]
    rows: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return rows


def measured(bench: Bench) -> list[dict[str, Any]]:
    """The rows of a bench, or one that says what is missing."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return [of_outcome(bench, one) for one in bench.measure(Path(folder))]
        except SkippedError as error:
            return [row(bench, note=str(error), verdict="skipped")]


def of_outcome(bench: Bench, outcome: Outcome) -> dict[str, Any]:
    """A row with its verdict."""
    ratio = statistics.median(outcome.ratios)
    reached = ratio >= bench.goal if bench.at_least else ratio <= bench.goal
    numbers = (ratio, min(outcome.ratios), max(outcome.ratios))
    texts = (f"{number:.3g}" for number in numbers)
    verdict, name = "reached" if reached else "missed", outcome.name or bench.name
    cells = dict(zip(("ratio", "lowest", "highest"), texts, strict=True))
    return row(bench, **cells, verdict=verdict, note=outcome.note) | {"bench": name}


def row(bench: Bench, **cells: str) -> dict[str, Any]:
    """A row of the table; cells that are not given are empty."""
    goal = f"{'≥' if bench.at_least else '≤'} {bench.goal:g}"
    known = {"bench": bench.name, "what": bench.what, "goal": goal}
    return {**dict.fromkeys(COLUMNS, ""), **known, **cells}


if __name__ == "__main__":
    sys.exit(main())
