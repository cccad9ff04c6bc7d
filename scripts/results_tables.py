"""Copy what docs/results.md needs of a report, and of the runs behind it, to results/tables/ (results_page.py)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from results_groups import Side

from cudt.noise.base import distribution
from cudt.report import paired
from cudt.report.collect import ReadRun, read_run
from cudt.report.comparable import Pair

TABLES = Path(__file__).parent.parent / "results" / "tables"
_COPIED = ("table", "paired", "curves", "decision", "decision_correlations", "claims", "class_bias")
_OF_TRIAL = ["search", "recipe", "variant", "run"]


def copy_tables(report: Path, shown: Iterable[str]) -> None:
    """Copy the report's tables, without paths of this machine.

    `shown` are the tables for people that pages show as they are.
    """
    TABLES.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        if not (report / f"{name}.csv").is_file():
            continue
        pd.read_csv(report / f"{name}.csv").to_csv(TABLES / f"{name}.csv", index=False, float_format="%.6g")
    for name in shown:
        if (report / "tables" / f"{name}.md").is_file():
            shutil.copyfile(report / "tables" / f"{name}.md", TABLES / f"{name}.md")
    if (report / "tables" / "other-data.csv").is_file():
        pd.read_csv(report / "tables" / "other-data.csv").to_csv(
            TABLES / "other-data.csv", index=False, float_format="%.6g"
        )
    trials = [_trials(file) for file in sorted(report.parent.glob("sweeps/*/*/trials_wide.csv"))]
    if trials:
        known = pd.concat(trials)
        known.to_csv(TABLES / "trials.csv", index=False, float_format="%.6g")
        for name, read in (("exits", _exits), ("descent", _descent), ("privacy", _privacy)):
            found = [rows for _, trial in known.iterrows() if (rows := read(report.parent, trial)) is not None]
            if found:
                pd.concat(found).to_csv(TABLES / f"{name}.csv", index=False, float_format="%.6g")


def _trials(file: Path) -> pd.DataFrame:
    """The finished trials of a sweep, with the settings that it searched in one column, and the group of each run."""
    table = pd.read_csv(file, dtype={"setting": str}).fillna({"setting": ""})
    table = table[table["state"] == "finished"]
    keys = [name for name in table if "." in name and table[name].nunique() > 1]
    said = [", ".join(f"{key} {value:.4g}" for key, value in row[keys].dropna().items()) for _, row in table.iterrows()]
    infos = [json.loads((file.parents[3] / run / "run.json").read_text(encoding="utf-8")) for run in table["run"]]
    name, recipe = file.parent.name.rpartition("-")[0], file.parent.parent.name
    columns = table[["setting", "arm", "trial", "score", "run"]]
    return columns.assign(search=name, recipe=recipe, settings=said, variant=[info["variant"] for info in infos])


def _exits(out: Path, trial: pd.Series) -> pd.DataFrame | None:
    """The chosen points of early exit of a trial's run on test data; None if it has none."""
    path = out / trial["run"] / "exits.csv"
    if not path.is_file():
        return None
    table = pd.read_csv(path)
    chosen = table[(table["split"] == "test") & (table["chosen"] == 1)]
    columns = ["perturbation", "gamma", "rule", "accuracy", "full_accuracy", "mean_depth"]
    return chosen[columns].assign(**trial[_OF_TRIAL])


def _descent(out: Path, trial: pd.Series) -> pd.DataFrame | None:
    """What is left of descent at each level, and the share of logged updates with a negative weight of some layer."""
    folder = out / trial["run"]
    if not (folder / "ood.csv").is_file():
        return None
    reference = json.loads((folder / "run.json").read_text(encoding="utf-8"))["reference"]
    table, history = (pd.read_csv(folder / f"{name}.csv") for name in ("layers", "history"))
    rows = []
    for (kind, gamma), level in table[table["split"] == "test"].groupby(["perturbation", "gamma"]):
        losses = level.sort_values("layer")["loss"].to_numpy()
        falling = (np.diff(losses, prepend=reference) < 0).mean()
        numbers = {"falling": falling, "best_layer": losses.argmin() + 1, "gap": losses[-1] - losses.min()}
        rows.append({"perturbation": kind, "gamma": gamma, **numbers})
    weights = history[(history["split"] == "train") & (history["name"] == "weight")]
    negative = (weights.groupby("step")["value"].min() < 0).mean() if len(weights) else np.nan
    return pd.DataFrame(rows).assign(negative=negative, **trial[_OF_TRIAL])


def _privacy(out: Path, trial: pd.Series) -> pd.DataFrame | None:
    """The ε of each level next to the metric; None if it was not computed."""
    path = out / trial["run"] / "privacy.csv"
    return pd.read_csv(path).assign(**trial[_OF_TRIAL]) if path.is_file() else None


def write_versus(out: Path, compared: Iterable[tuple[Side, Side]], tables: Path = TABLES) -> None:
    """versus.csv: the paired differences of groups that no report compares, since more than the objective differs."""
    rows = [
        paired.of_pair(Pair(ours.perturbation, _runs(out, ours, tables), _runs(out, theirs, tables)))
        for ours, theirs in compared
    ]
    table = pd.concat(rows) if rows else paired.empty()
    table.drop_duplicates().to_csv(tables / "versus.csv", index=False, float_format="%.6g")


def write_weights(out: Path, tables: Path = TABLES) -> None:
    """weights.csv and weights_paired.csv: runs that were evaluated with both weights, under Gaussian noise.

    The differences are those of the last and the best weights of each group, and of objectives with the last weights.
    """
    trials = pd.read_csv(tables / "trials.csv")
    rows, differences = [], []
    for _, cell in trials.groupby(["search", "recipe", "setting"], dropna=False):
        groups = [read for _, mine in cell.groupby("variant", sort=False) if (read := _with_both(out, mine))]
        for last, best in groups:
            rows += [_means(run) for run in (*best, *last)]
            others = [other for other, _ in groups if other is not last]
            differences += [paired.of_pair(Pair("gaussian", last, other)) for other in [best, *others]]
    if rows:
        pd.DataFrame(rows).to_csv(tables / "weights.csv", index=False, float_format="%.6g")
        pd.concat(differences).to_csv(tables / "weights_paired.csv", index=False, float_format="%.6g")


def _with_both(out: Path, trials: pd.DataFrame) -> tuple[list[ReadRun], list[ReadRun]] | None:
    """The runs of a group with their last weights, and with their best ones; None if some have only their own."""
    folders = [out / run for run in sorted({*trials["run"]})]
    if not all((folder / "last" / "ood.csv").is_file() for folder in folders):
        return None
    return [read_run(folder / "last") for folder in folders], [read_run(folder) for folder in folders]


def _means(run: ReadRun) -> dict[str, object]:
    """The mean metric of some weights of a run in and out of distribution, and the epoch that was chosen."""
    names = {"recipe": run.recipe, "variant": run.variant, "seed": run.seed, "weights": run.run.weights}
    of_levels: dict[str, list[float]] = {"ID": [], "OOD": []}
    for level, value in run.curves["gaussian"].items():
        of_levels[distribution("gaussian", level, run.gamma_train)].append(value)
    return {**names, "epoch": run.info.best.epoch, **{name: np.mean(found) for name, found in of_levels.items()}}


def _runs(out: Path, one: Side, tables: Path) -> list[ReadRun]:
    """The runs of a group, by the trials that made them."""
    trials = pd.read_csv(tables / "trials.csv")
    mine = trials[(trials["recipe"] == one.recipe) & (trials["variant"] == one.variant)]
    return [read_run(out / run) for run in sorted({*mine["run"]})]
