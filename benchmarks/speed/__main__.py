"""Run the speed benches, print their table, and write it as CSV.

python -m benchmarks.speed                  all benches (about 5 minutes)
python -m benchmarks.speed dust_step        one of them
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.speed import bench, table
from benchmarks.speed.bench import Outcome
from benchmarks.speed.table import Row


def main() -> None:
    given = _arguments()
    # A log file has no width.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    chosen, rows = given.names or bench.names(), []
    start = time.monotonic()
    for number, name in enumerate(chosen, 1):
        console.print(f"{number} of {len(chosen)}: {name} …", highlight=False)
        begun = time.monotonic()
        found = _run(name, given.data_root)
        rows += found
        done = ", ".join(
            f"{row.name} {row.cells()['ratio'] or row.reason} ({row.verdict})" for row in found
        )
        console.print(
            f"  {done} · {time.monotonic() - begun:.0f} s",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    given.out.mkdir(parents=True, exist_ok=True)
    table.write_csv(rows, given.out / "bench.csv")
    console.print(table.on_terminal(rows))
    for row in rows:
        if note := row.cells()["note"]:
            console.print(f"{row.name}: {note}", highlight=False, markup=False)
    print(f"{time.monotonic() - start:.0f} s; wrote {given.out}/bench.csv")
    sys.exit(any(row.failed for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("names", nargs="*", help="benches to run; all by default")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/bench"), help="folder of bench.csv"
    )
    root = os.environ.get("CUDT_DATA_ROOT")
    parser.add_argument(
        "--data-root", type=Path, default=Path(root) if root else None, help="folder of real data"
    )
    given = parser.parse_args()
    if unknown := set(given.names) - set(bench.names()):
        parser.error(f"no bench {', '.join(sorted(unknown))}; known: {', '.join(bench.names())}")
    return given


def _run(name: str, data_root: Path | None) -> list[Row]:
    """The rows of one bench, measured in a process of its own."""
    one = bench.load(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", f"{__package__}.child", name, str(file)]
        command += ["--data-root", str(data_root.absolute())] if data_root else []
        ended = subprocess.run(
            command, env=bench.use_threads(one.threads), stderr=subprocess.PIPE, text=True
        )
        if ended.returncode:
            print(ended.stderr, file=sys.stderr)
            return [
                Row(
                    one,
                    None,
                    f"exit code {ended.returncode}; its error is printed above",
                    failed=True,
                )
            ]
        found = json.loads(file.read_text(encoding="utf-8"))
    if "skipped" in found:
        return [Row(one, None, found["skipped"])]
    return [
        Row(one, Outcome(**{**raw, "ratios": tuple(raw["ratios"])})) for raw in found["outcomes"]
    ]


if __name__ == "__main__":
    main()
