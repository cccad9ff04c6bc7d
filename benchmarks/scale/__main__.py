"""Measure what docs/scale.md says, store it as CSV, and write the page's tables and figure.

python -m benchmarks.scale                    everything (about 20 minutes); PostgreSQL for the workers
python -m benchmarks.scale flops memory       some of it
python -m benchmarks.scale --render           nothing is measured: the page from the stored files
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import page
from benchmarks.scale import cases, figure, flops, lengths, memory, stored, tables, traffic, workers
from benchmarks.scale.postgres import postgres
from benchmarks.speed.bench import SkippedError


def main() -> None:
    given = _arguments()
    warnings.simplefilter("ignore")
    given.out.mkdir(parents=True, exist_ok=True)
    for name in [] if given.render else given.names or list(MEASURES):
        began = time.monotonic()
        try:
            stored.write(name, MEASURES[name](given), given.out)
        except SkippedError as error:
            print(f"{name}: skipped: {error}")
            continue
        print(f"{name}: {time.monotonic() - began:.0f} s; wrote {given.out / name}.csv", flush=True)
    if given.page:
        tables.put_all(given.page, given.out)
        figure.draw(given.page.parent / "images" / "scale.png", given.out)
        print(f"wrote the tables of {given.page} and images/scale.png next to it")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"what to measure, of {', '.join(MEASURES)}; all by default")
    parser.add_argument("--render", action="store_true", help="measure nothing, only write the page")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and workers: about two minutes")
    parser.add_argument("--out", type=Path, default=stored.FOLDER, help="folder of the CSV files")
    parser.add_argument("--page", type=Path, help="Markdown page to write the tables into, between their marks")
    root = os.environ.get("CUDT_DATA_ROOT")
    parser.add_argument("--data-root", type=Path, default=Path(root) if root else None, help="folder of real data")
    given = parser.parse_args()
    if unknown := set(given.names) - set(MEASURES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MEASURES)}")
    return given


def _flops(given: argparse.Namespace) -> list[flops.Counted]:
    shapes = memory.shapes_to_fit(2 if given.quick else 8) + memory.shapes_to_check()
    return [flops.measure(shape) for shape in shapes]


def _memory(given: argparse.Namespace) -> list[memory.Measured]:
    fitted = [memory.measure(shape, "fit") for shape in memory.shapes_to_fit()]
    return fitted + [memory.measure(shape) for shape in memory.shapes_to_check()]


def _traffic(given: argparse.Namespace) -> list[traffic.Sent]:
    return [traffic.measure(*case) for case in traffic.cases(given.quick)]


def _lengths(given: argparse.Namespace) -> list[lengths.Lengths]:
    if given.data_root is None:
        raise SkippedError("no data: set --data-root or CUDT_DATA_ROOT to the folder of IMDb, MNLI and Alpaca")
    return [lengths.measure(name, given.data_root) for name in lengths.RECIPES]


def _workers(given: argparse.Namespace) -> list[workers.Outcome]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = []
    with postgres(max_connections=2200) as server:
        for case in cases.QUICK if given.quick else cases.ALL:
            found.append(workers.simulate(case, server))
            print("  " + " | ".join(tables.row(found[-1])), flush=True)
    (given.out / "machine.txt").write_text(page.measured_on("optuna", "sqlalchemy", "psycopg") + "\n", encoding="utf-8")
    return found


MEASURES: dict[str, Callable[[argparse.Namespace], Sequence[object]]] = {
    "flops": _flops,
    "memory": _memory,
    "traffic": _traffic,
    "lengths": _lengths,
    "workers": _workers,
}


if __name__ == "__main__":
    main()
