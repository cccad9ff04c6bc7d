"""Show that a change of the code changed no number.

    git worktree add ../old 77b91c2 && make -C ../old install
    python scripts/same_numbers ../old outputs/same-numbers                    # all numbers equal
    python scripts/same_numbers ../old outputs/same-numbers --tolerance 1e-4   # equal up to rounding

Both checkouts, each with the Python of its own .venv, read the same data and weights, train every
recipe with every objective, evaluate each run under every kind of noise that its data can have, and
run a sweep: with one worker, in one thread. What the old checkout recorded is kept for the
next comparison; about three minutes for each side.

Runs are matched by the settings that both checkouts know, since the hash in a run's name changes
with every key. Of two runs, every table, the losses of examples and the weights are compared, as
far as both have them: what one of them lacks is listed and is no difference. With a tolerance t,
two numbers may differ by t·(|a| + 1e-3); in the first ten updates by 1e-6 of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
OBJECTIVES = ("erm", "supervised", "constrained")
TEXT, VIDEO = ("gaussian", "uniform", "discrete"), ("gaussian", "uniform")
#: The kinds of noise by recipe: generated reviews and videos have no source texts to damage.
RECIPES = {
    "smoke-text": ("gaussian", "uniform"),
    "smoke-video": VIDEO,
    "smoke-llama": TEXT,
    str(HERE / "same-bert.yaml"): TEXT,
    str(HERE / "same-vit.yaml"): VIDEO,
    str(HERE / "same-dust.yaml"): VIDEO,
}
SEARCH = HERE / "same-search.yaml"
#: Of the table of trials: the names of runs, and how long they took.
NOT_NUMBERS = {"run", "seconds", "deaths"}


def main() -> int:
    """Record both sides and compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "old", type=Path, help="a checkout of the commit before, installed in its own .venv"
    )
    parser.add_argument("out", type=Path, help="a folder for data, runs and logs")
    parser.add_argument(
        "--new", type=Path, default=HERE.parents[1], help="the checkout to compare; this one"
    )
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="the Python of the new checkout"
    )
    parser.add_argument("--tolerance", type=float, default=0.0)
    arguments = parser.parse_args()
    old, out = arguments.old.resolve(), arguments.out.resolve()
    old_python = old / ".venv/bin/python"
    if not (out / "data").exists():
        run(old, old_python, out, str(HERE / "inputs.py"), str(out / "data"))
    if not (out / "old/finished").exists():
        record(old, old_python, out, out / "old")
    record(arguments.new.resolve(), arguments.python, out, out / "new")
    return compare(out / "old", out / "new", arguments.tolerance)


def record(checkout: Path, python: Path, out: Path, folder: Path) -> None:
    """Make every file that `compare` reads."""
    print(f"recording {checkout} in {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    data = ("--data-root", str(out / "data"))
    for recipe, noises in RECIPES.items():
        for objective in OBJECTIVES:
            cudt = (
                "-m",
                "cudt",
                "train",
                "--recipe",
                recipe,
                "--objective",
                objective,
                "--out",
                str(folder),
                *data,
            )
            run(checkout, python, out, *cudt)
        runs = sorted(str(path) for path in (folder / Path(recipe).stem).iterdir())
        kinds = [word for kind in noises for word in ("--perturbation", kind)]
        run(checkout, python, out, "-m", "cudt", "eval-ood", *runs, *kinds, *data)
    run(
        checkout,
        python,
        out,
        "-m",
        "cudt",
        "sweep",
        "--search",
        str(SEARCH),
        "--out",
        str(folder / "sweep"),
    )
    (folder / "finished").touch()


def run(checkout: Path, python: Path, out: Path, *arguments: str) -> None:
    """Run Python with this checkout's cudt in one thread, so that sums are rounded the same way
    every time.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "OMP_NUM_THREADS": "1",
        "CUDT_CACHE": str(out / "cache"),
    }
    environment.pop("CUDT_DATA_ROOT", None)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.txt").open("a") as log:
        command = [str(python), *arguments]
        done = subprocess.run(
            command, cwd=checkout, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}; see {out / 'log.txt'}")


def compare(old: Path, new: Path, tolerance: float) -> int:
    """Print what differs, then what only one side has; 0 where no number differs."""
    before, after = settings(old), settings(new)
    known = {key for recipe in before.values() for key in recipe} & {
        key for recipe in after.values() for key in recipe
    }
    matched = {identity(recipe, known): folder for folder, recipe in after.items()}
    differing, lacking, n_files = [], set(), 0
    for folder, recipe in before.items():
        twin = matched.get(identity(recipe, known))
        if twin is None:
            differing.append(f"{folder.relative_to(old)}: no such run")
            continue
        names = {path.relative_to(root) for root in (folder, twin) for path in files_of(root)}
        for name in sorted(names):
            if not ((folder / name).exists() and (twin / name).exists()):
                lacking.add(f"{name}: only in {'old' if (folder / name).exists() else 'new'} runs")
                continue
            n_files += 1
            for difference in differences(folder / name, twin / name, tolerance, lacking):
                differing.append(f"{folder.relative_to(old)}/{name}: {difference}")
    trials_before, trials_after = (next(root.rglob("trials_wide.csv")) for root in (old, new))
    found = differences(trials_before, trials_after, tolerance, lacking)
    differing += [f"{SEARCH.stem}: {difference}" for difference in found]
    print(*sorted(lacking), *differing, sep="\n")
    print(f"{len(before)} runs, {n_files} files, {len(differing)} differences")
    return bool(differing or not before or len(before) != len(after))


def settings(root: Path) -> dict[Path, dict[str, Any]]:
    """The settings of every run below a folder, by dotted key."""
    recipes = {
        path.parent: yaml.safe_load(path.read_text()) for path in sorted(root.rglob("recipe.yaml"))
    }
    return {
        folder: flat(recipe)
        for folder, recipe in recipes.items()
        if (folder / "history.csv").exists()
    }


def flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key: {"noise": {"kind": …}} becomes {"noise.kind": …}."""
    values: dict[str, Any] = {}
    for key, value in section.items():
        values |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        )
    return values


def identity(recipe: dict[str, Any], known: set[str]) -> str:
    """What names a run in both checkouts; a key without a value says as little as a key that is not
    there.
    """
    return repr(
        sorted((key, value) for key, value in recipe.items() if key in known and value is not None)
    )


def files_of(run: Path) -> list[Path]:
    """A run's tables and weights; a folder `model` holds a copy of the best weights."""
    found = [*run.rglob("*.csv"), *run.rglob("*.parquet"), *run.rglob("*.safetensors")]
    return [path for path in found if "model" not in path.relative_to(run).parts]


def differences(old: Path, new: Path, tolerance: float, lacking: set[str]) -> list[str]:
    """What differs in two files of one name; columns that one of them lacks are added to
    `lacking`.
    """
    if old.suffix == ".safetensors":
        before, after = load_file(old), load_file(new)
        lacking |= {
            f"{old.name}: {name} is in one file only" for name in before.keys() ^ after.keys()
        }
        return [
            name
            for name in before.keys() & after.keys()
            if not same(before[name], after[name], tolerance)
        ]
    tables = [
        pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        for path in (old, new)
    ]
    only = (set(tables[0]) ^ set(tables[1])) - NOT_NUMBERS
    lacking |= {f"{old.name}: column {column} is in one table only" for column in only}
    if len(tables[0]) != len(tables[1]):
        return [f"{len(tables[0])} rows, now {len(tables[1])}"]
    shared = [column for column in tables[0] if column in tables[1] and column not in NOT_NUMBERS]
    found = []
    for column in shared:
        before, after = (table[column].to_numpy() for table in tables)
        if "step" in tables[0] and tolerance:
            early = tables[0]["step"].to_numpy() <= 10
            equal = same(before[early], after[early], 1e-6) and same(
                before[~early], after[~early], tolerance
            )
        else:
            equal = same(before, after, tolerance)
        found += [] if equal else [f"column {column}{largest(before, after)}"]
    return found


def same(before: Any, after: Any, tolerance: float) -> bool:
    """Whether two arrays are equal, or numbers in them as close as the tolerance allows."""
    if before.shape != after.shape:
        return False
    if not (np.issubdtype(before.dtype, np.number) and np.issubdtype(after.dtype, np.number)):
        return bool(((before == after) | (pd.isna(before) & pd.isna(after))).all())
    if not tolerance:
        return before.dtype == after.dtype and before.tobytes() == after.tobytes()
    return bool(np.allclose(after, before, rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True))


def largest(before: Any, after: Any) -> str:
    """The largest difference of two columns of numbers, in words."""
    if not (np.issubdtype(before.dtype, np.number) and np.issubdtype(after.dtype, np.number)):
        return ""
    return f", by up to {np.nanmax(np.abs(after - before)):.3g}"


if __name__ == "__main__":
    sys.exit(main())
