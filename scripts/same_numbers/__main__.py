"""Show that a change of the code changed no number.

    git worktree add ../old COMMIT && make -C ../old install
    python scripts/same_numbers ../old outputs/same-numbers                    # all numbers equal
    python scripts/same_numbers ../old outputs/same-numbers --tolerance 1e-4   # equal up to rounding

Both checkouts, each with the Python of its own .venv, read the same data and weights, train every
recipe with every objective, evaluate each run under every kind of noise that its data can have, and
run a sweep: with one worker, in one thread. What the old checkout recorded is kept for the
next comparison; about three minutes for each side.

Runs are matched by the settings that both checkouts know, since the hash in a run's name changes
with every key. Of two runs, every table and the weights are compared. With a tolerance t, two
numbers may differ by t·(|a| + 1e-3); in the first ten updates by 1e-6 of it.
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
VIDEO = ("gaussian", "uniform")
TEXT = (*VIDEO, "discrete")
#: The kinds of noise by recipe: generated reviews and videos have no source texts to damage.
RECIPES = {
    "smoke-text": VIDEO,
    "smoke-video": VIDEO,
    "smoke-llama": TEXT,
    str(HERE / "same-bert.yaml"): TEXT,
    str(HERE / "same-vit.yaml"): VIDEO,
    str(HERE / "same-dust.yaml"): VIDEO,
}
#: The columns that say what the rows of a table are about; the others are numbers.
KEYS = {
    "history": ["step", "split", "layer", "name"],
    "layers": ["split", "noise", "gamma", "seed", "layer"],
    "ood": ["split", "noise", "gamma", "seed"],
    "examples": ["split", "noise", "gamma", "seed", "id"],
}


def main() -> int:
    """Record both sides and compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="a checkout of the commit before, with its .venv")
    parser.add_argument("out", type=Path, help="a folder for data, runs and logs")
    parser.add_argument("--tolerance", type=float, default=0.0)
    given = parser.parse_args()
    old, out = given.old.resolve(), given.out.resolve()
    if not (out / "data").exists():
        run(HERE.parents[1], Path(sys.executable), out, HERE / "inputs.py", out / "data")
    if not (out / "old/finished").exists():
        record(old, old / ".venv/bin/python", out, out / "old")
    record(HERE.parents[1], Path(sys.executable), out, out / "new")
    return compare(out / "old", out / "new", given.tolerance)


def record(checkout: Path, python: Path, out: Path, folder: Path) -> None:
    """Make every file that `compare` reads."""
    print(f"recording {checkout} in {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    data = ("--data-root", out / "data")
    for recipe, noises in RECIPES.items():
        for objective in ("erm", "supervised", "constrained"):
            words = ("train", "--recipe", recipe, "--objective", objective, "--out", folder)
            run(checkout, python, out, "-m", "cudt", *words, *data)
        runs = sorted((folder / Path(recipe).stem).iterdir())
        kinds = [word for kind in noises for word in ("--perturbation", kind)]
        run(checkout, python, out, "-m", "cudt", "eval-ood", *runs, *kinds, *data)
    search = ("--search", HERE / "same-search.yaml", "--out", folder / "sweep")
    run(checkout, python, out, "-m", "cudt", "sweep", *search)
    (folder / "finished").touch()


def run(checkout: Path, python: Path, out: Path, *arguments: Any) -> None:
    """Run Python with this checkout's cudt in one thread, so that sums are rounded the same way
    every time.
    """
    own = {"PYTHONPATH": checkout, "OMP_NUM_THREADS": 1, "CUDT_CACHE": out / "cache"}
    environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
    environment.pop("CUDT_DATA_ROOT", None)
    out.mkdir(parents=True, exist_ok=True)
    command = [str(word) for word in (python, *arguments)]
    with (out / "log.txt").open("a") as log:
        done = subprocess.run(
            command, cwd=checkout, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}; see {out / 'log.txt'}")


def compare(old: Path, new: Path, tolerance: float) -> int:
    """Print what differs; 0 where no number differs."""
    before, after = settings(old), settings(new)
    known = {key for one in before.values() for key in one}
    known &= {key for one in after.values() for key in one}
    matched = {identity(recipe, known): folder for folder, recipe in after.items()}
    differing, n_tables = [], 0
    for folder, recipe in before.items():
        twin = matched.get(identity(recipe, known))
        if twin is None:
            differing.append(f"{folder.relative_to(old)}: no such run")
            continue
        for name, table in tables_of(folder).items():
            n_tables += 1
            found = differences(name, table, tables_of(twin)[name], tolerance)
            differing += [f"{folder.relative_to(old)}: {name}: {one}" for one in found]
    print(*differing, sep="\n")
    print(f"{len(before)} runs, {n_tables} tables, {len(differing)} differences")
    return bool(differing or not before or len(before) != len(after))


def settings(root: Path) -> dict[Path, dict[str, Any]]:
    """The settings of every run below a folder, by dotted key."""
    files = [
        path for path in sorted(root.rglob("recipe.yaml")) if (path.parent / "run.json").exists()
    ]
    return {file.parent: flat(yaml.safe_load(file.read_text())) for file in files}


def flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key: {"noise": {"kind": …}} becomes {"noise.kind": …}."""
    values: dict[str, Any] = {}
    for key, value in section.items():
        inner = isinstance(value, dict)
        values |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return values


def identity(recipe: dict[str, Any], known: set[str]) -> str:
    """What names a run in both checkouts; a key without a value says as little as one that is not
    there.
    """
    return repr(sorted((key, str(recipe[key])) for key in known if recipe.get(key) is not None))


def tables_of(run: Path) -> dict[str, pd.DataFrame]:
    """The tables of a run, indexed by what their rows are about, and its weights."""
    tables = {}
    for name, keys in KEYS.items():
        files = (run / f"{name}.csv", pd.read_csv), (run / f"{name}.parquet", pd.read_parquet)
        for file, read in files:
            if file.exists():
                tables[name] = read(file).set_index(keys).select_dtypes("number")
    for file in run.glob("checkpoints/*.safetensors"):
        weights = {name: values.ravel() for name, values in load_file(file).items()}
        named = {name: pd.DataFrame({"weight": values}) for name, values in weights.items()}
        tables[file.name] = pd.concat(named)
    return tables


def differences(name: str, old: pd.DataFrame, new: pd.DataFrame, tolerance: float) -> list[str]:
    """What differs in the rows and columns of the old table."""
    lost = old.index.difference(new.index)
    if len(lost):
        return [f"{len(lost)} rows are missing, such as {lost[0]}"]
    found, new = [], new.loc[old.index]
    early = (
        old.index.get_level_values("step") <= 10 if name == "history" else np.zeros(len(old), bool)
    )
    for column in old:
        before, after = old[column].to_numpy(float), new[column].to_numpy(float)
        allowed = np.where(early, min(tolerance, 1e-6), tolerance) * (np.abs(before) + 1e-3)
        equal = (np.abs(after - before) <= allowed) | (np.isnan(before) & np.isnan(after))
        if not equal.all():
            found.append(f"{column}, by up to {np.nanmax(np.abs(after - before)):.3g}")
    return found


if __name__ == "__main__":
    sys.exit(main())
