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
import json
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
    """Print what differs; 0 where no number differs."""
    before, after = settings(old), settings(new)
    known = {key for recipe in before.values() for key in recipe} & {
        key for recipe in after.values() for key in recipe
    }
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


def tables_of(run: Path) -> dict[str, pd.DataFrame]:
    """The tables of a run in either layout, indexed by what their rows are about, and its weights.

    Of rows that one of the checkouts does not write, such as those at the level of training, the
    other's are compared with nothing.
    """
    history = pd.read_csv(run / "history.csv")
    tables = {"history": history.set_index(["step", "split", "layer", "name"])[["value"]]}
    for file in run.rglob("checkpoints/*.safetensors"):
        weights = {name: values.ravel() for name, values in load_file(file).items()}
        named = {name: pd.DataFrame({"weight": values}) for name, values in weights.items()}
        tables[file.name] = pd.concat(named)
    is_new = (
        "split" in pd.read_csv(run / "layers.csv", nrows=0)
        and not (run / "checksums.json").exists()
    )
    layers = pd.read_csv(run / "layers.csv").rename(columns={"perturbation": "noise"})
    keys = ["split", "noise", "gamma", "layer"]
    # One table has the noise seeds apart, the other their mean.
    tables["layers"] = layers.groupby(keys)[["loss", "metric"]].mean()
    if is_new and (run / "ood.csv").exists():
        ood = pd.read_csv(run / "ood.csv").set_index(["split", "noise", "gamma", "seed"])
        tables["ood"] = ood[["value", "low", "high", "input"]]
    elif not is_new:
        parts = [
            of_metrics(run, file, split)
            for file, split in (("ood.csv", "test"), ("validation.csv", "validation"))
            if (run / file).exists()
        ]
        tables |= {"ood": pd.concat(parts)} if parts else {}
    if (run / "examples.parquet").exists():
        examples = pd.read_parquet(run / "examples.parquet")
        if is_new:
            examples = examples[examples["split"] == "test"]
            last = max(int(name[6:]) for name in examples if name.startswith("score_"))
            examples["score"] = examples[f"score_{last}"]
        examples = examples.rename(columns={"perturbation": "noise"})
        tables["examples"] = examples.set_index(["noise", "gamma", "seed", "id"])[["score"]]
    return tables


def of_metrics(run: Path, file: str, split: str) -> pd.DataFrame:
    """A table with a row for each metric, as one with a column for each."""
    rows = pd.read_csv(run / file).rename(columns={"perturbation": "noise"}).assign(split=split)
    wide = rows.pivot_table("value", ["split", "noise", "gamma", "seed"], "metric")
    name = json.loads((run / "run.json").read_text())["metric"]["name"]
    kept = {name: "value", f"{name}_low": "low", f"{name}_high": "high", f"input_{name}": "input"}
    return wide.rename(columns=kept).reindex(columns=[*kept.values()])


def differences(name: str, old: pd.DataFrame, new: pd.DataFrame, tolerance: float) -> list[str]:
    """What differs in the rows of the old table."""
    lost = old.index.difference(new.index)
    if len(lost):
        return [f"{len(lost)} rows are missing, such as {lost[0]}"]
    found, new = [], new.loc[old.index]
    for column in old:
        before, after = old[column].to_numpy(float), new[column].to_numpy(float)
        if name == "history" and tolerance:
            early = old.index.get_level_values("step") <= 10
            equal = same(before[early], after[early], 1e-6)
            equal &= same(before[~early], after[~early], tolerance)
        else:
            equal = same(before, after, tolerance)
        found += [] if equal else [f"{column}, by up to {np.nanmax(np.abs(after - before)):.3g}"]
    return found


def same(before: Any, after: Any, tolerance: float) -> bool:
    """Whether two arrays are as close as the tolerance allows."""
    return bool(np.allclose(after, before, rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True))


if __name__ == "__main__":
    sys.exit(main())
