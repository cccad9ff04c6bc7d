"""Shows that a change of the code changed no number.

    python scripts/same_numbers.py record ../old     # in a checkout of the commit before
    python scripts/same_numbers.py record ../new     # in a checkout of the commit after
    python scripts/same_numbers.py compare ../old ../new

`record` trains the smoke recipes with every objective, evaluates each under every kind of noise, runs a smoke sweep
and reproduces the smoke scale (about ten minutes on two cores). `compare` expects the same run folders, which are named
by a hash of their settings, byte-identical tables and weights in each, and the same numbers in the report's tables,
whose words may change.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECIPES = ("smoke-text", "smoke-video", "smoke-llama")
OBJECTIVES = ("erm", "supervised", "constrained")
#: Video and generated reviews have no source texts to damage.
NOISES = {"smoke-llama": ("gaussian", "uniform", "discrete")}
#: Tables and weights. The Markdown and LaTeX tables of a report repeat its CSV files.
COMPARED = ("*.csv", "*.parquet", "*.safetensors")
#: The tables of sweeps say how long runs took; `model` holds a copy of the best weights.
NOT_COMPARED = {"sweeps", "model"}


def cudt(folder: Path, *arguments: str) -> None:
    """Run a command of this checkout's cudt in one thread, so that sums are rounded the same way every time."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDT_CACHE": str(folder / "cache")}
    environment.pop("CUDT_DATA_ROOT", None)
    command = [sys.executable, "-m", "cudt", *arguments]
    with (folder / "log.txt").open("a") as log:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"cudt {' '.join(arguments)}: exit code {done.returncode}; see {folder / 'log.txt'}")


def record(folder: Path) -> None:
    """Make every file that `compare` reads."""
    folder = folder.resolve()
    folder.mkdir(parents=True)
    # First: it writes the tiny Llama that smoke-llama reads. One worker: with two, what the searches draw next would
    # depend on which of them finishes first.
    cudt(folder, "reproduce", "--scale", "smoke", "--out", str(folder / "reproduce"))
    data = ("--data-root", str(folder / "reproduce" / "generated"))
    for recipe in RECIPES:
        for objective in OBJECTIVES:
            out = folder / "runs"
            cudt(folder, "train", "--recipe", recipe, "--objective", objective, "--out", str(out), *data)
        runs = sorted(str(path) for path in (folder / "runs" / recipe).iterdir())
        noises = [part for kind in NOISES.get(recipe, ("gaussian", "uniform")) for part in ("--perturbation", kind)]
        cudt(folder, "eval-ood", *runs, *noises, *data)
    cudt(folder, "sweep", "--search", "smoke-text-search", "--out", str(folder / "sweep"))


def digests(folder: Path) -> dict[str, str]:
    """The digest of every compared file by its path."""
    found: dict[str, str] = {}
    for pattern in COMPARED:
        for path in folder.rglob(pattern):
            name = path.relative_to(folder)
            if not NOT_COMPARED & set(name.parts):
                content = numbers(path) if "report" in name.parts else path.read_bytes()
                found[str(name)] = hashlib.sha256(content).hexdigest()
    return found


def numbers(table: Path) -> bytes:
    """The numbers of a table in their order, without its words."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = [[cell for cell in row if is_number(cell)] for row in csv.reader(file)]
    return repr(rows).encode()


def is_number(cell: str) -> bool:
    """Whether a cell holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def compare(old: Path, new: Path) -> int:
    """Print what differs; 0 where nothing does."""
    before, after = digests(old), digests(new)
    differing = [name for name in sorted(before | after) if before.get(name) != after.get(name)]
    for name in differing:
        what = "differs" if name in before and name in after else "only before" if name in before else "only after"
        print(f"{what}: {name}")
    runs = len({Path(name).parent for name in before if name.endswith("history.csv")})
    print(f"{len(before)} files of {runs} runs, {len(differing)} differ")
    return bool(differing or not before)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("folder", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare(arguments.old, arguments.new)
    record(arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
