"""Run folders and sweeps as tidy tables. No other file of the report reads them.

    runs      one row a run: what it is, what came out of training, all its settings
    points    run × noise × γ: the metric with its interval, averaged over noise seeds
    layers    run × split × noise × γ × layer: loss and metric
    bins      run × noise × bin: the histogram of layer ratios of single test examples
    history   run × update × layer: what training logged, read when a figure asks for it

Scores of single examples are read like `history`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.config import yaml
from cudt.config.differences import flat_values
from cudt.config.levels import distribution, training_level
from cudt.evaluation import tables
from cudt.runs.info import FinishedInfo
from cudt.runs.run import OWN, RunFolder, find_runs
from cudt.utils.errors import UserError
from cudt.utils.files import files_below
from cudt.utils.shown import as_command

#: Runs that differ in nothing but their seed have these in common.
GROUP = ["recipe", "objective", "variant"]
#: The verdicts in run.json of constraints that are not kept.
_FAILING = ("violated", "relaxed")
#: Columns of `runs` that run.json has under the same name.
_RECORDED = (
    *("recipe", "objective", "variant", "seed", "gamma_train", "reference", "rates", "feasible"),
    *("monotone", "verdicts", "multipliers", "command"),
)


@dataclass(frozen=True)
class Sweep:
    """A sweep: sweep.json, its trials, and the best trial of each arm."""

    path: Path
    info: dict[str, Any]
    trials: pd.DataFrame
    best: pd.DataFrame

    @property
    def name(self) -> str:
        """Recipe and sweep."""
        return f"{self.info['recipe']}, {self.info['name']}"

    @property
    def finished(self) -> pd.DataFrame:
        """The trials with a score."""
        return self.trials[self.trials["state"] == "finished"]

    @property
    def keys(self) -> list[str]:
        """The settings that differ between finished trials."""
        return [key for key in self.info["keys"] if self.finished[key].nunique() > 1]

    @property
    def is_search(self) -> bool:
        """Whether settings were chosen among; a sampler of seeds repeats what is compared."""
        return any(arm["sampler"] != "seeds" for arm in self.info["arms"].values())


@dataclass
class Frames:
    """The tables of some runs; `runs` is indexed by the number that is `run` in the others."""

    runs: Any
    points: pd.DataFrame
    layers: pd.DataFrame
    bins: pd.DataFrame
    sweeps: list[Sweep] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def of(self, runs: Iterable[int]) -> Frames:
        """The tables of some of the runs."""
        chosen = [*runs]
        parts = (t[t["run"].isin(chosen)] for t in (self.points, self.layers, self.bins))
        return Frames(self.runs.loc[chosen], *parts)

    def row(self, run: int) -> Any:
        """The facts about one run."""
        return self.runs.loc[run]

    def curve(self, run: int, kind: str) -> dict[float, float]:
        """The metric of a run by level; empty if it was not evaluated under this noise."""
        return self._curves.get((run, kind), {})

    @cached_property
    def _curves(self) -> dict[Any, dict[float, float]]:
        grouped = self.points.groupby(["run", "perturbation"])
        return {key: dict(zip(t["gamma"], t["value"], strict=True)) for key, t in grouped}

    def history(self, run: int) -> pd.DataFrame:
        """What training logged: step, epoch, split, layer, name, value."""
        return RunFolder(self.row(run).path).read_table("history")

    def scores(self, run: int, kind: str) -> pd.DataFrame:
        """gamma, seed, id, weight and score of each test example under one kind of noise."""
        own = self.row(run)
        last = f"score_{own.n_layers}"
        keys = {"split": "test", "data": own.data, "weights": own.weights, "noise": kind}
        columns = ["gamma", "seed", "id", "weight", last]
        return RunFolder(own.path).read_examples(columns, **keys).rename(columns={last: "score"})

    def test_verdicts(self, run: int) -> list[Any]:
        """The verdict on each layer's constraint on test data, under the noise of training."""
        own, rows = self.row(run), self.layers[self.layers["run"] == run]
        trained = rows["gamma"] == training_level(own.kind, own.gamma_train)
        mine = rows[(rows["split"] == "test") & (rows["perturbation"] == own.kind) & trained]
        known = RunFolder(own.path).finished_info()
        return tables.verdicts(known, mine, has_slack=own.has_slack) if len(mine) else []


@dataclass
class _Read:
    """A run folder in memory: its row of `runs`, and its tables."""

    row: dict[str, Any]
    ood: pd.DataFrame
    layers: pd.DataFrame


def each(runs: pd.DataFrame) -> list[Any]:
    """The facts about each run; `Index` is its number."""
    return [*runs.itertuples()]


def read(folders: Sequence[Path]) -> Frames:
    """Every finished run and sweep below some folders; a warning for each that is left out."""
    found: dict[tuple[Any, ...], _Read] = {}
    warnings = []
    for path in find_runs(folders):
        try:
            run = _read(RunFolder(path))
        except (UserError, OSError) as error:
            warnings.append(str(error))
            continue
        key = (*(run.row[name] for name in GROUP), run.row["seed"])
        used = found.setdefault(key, run)
        if used is run:
            continue
        if used.ood.empty:
            found[key], used, run = run, run, used
        same = f"the same run (recipe, settings, seed) as {used.row['path']}"
        warnings.append(f"{run.row['path']}: skipped: {same}")
    if not found:
        more = "".join(f"\n  {warning}" for warning in warnings)
        where = ", ".join(map(str, folders))
        raise UserError(f"no finished run below {where}; create one with `cudt train`{more}")
    frames = _joined([found[key] for key in sorted(found)])
    frames.warnings = warnings
    _set_editions(frames)
    frames.bins = pd.concat([frames.bins, *_bins(frames)], ignore_index=True)
    frames.warnings += _about_evaluations(frames)
    _read_sweeps(frames, folders)
    return frames


def read_two(first: Path, second: Path, weights: str | None = None, data: str = OWN) -> Frames:
    """Two runs, numbered 0 and 1; with some of their weights, on some test data."""
    return _joined([_read(RunFolder(path), weights, data) for path in (first, second)])


# ---------------------------------------------------------------- runs


def _read(folder: RunFolder, weights: str | None = None, data: str = OWN) -> _Read:
    path = folder.path
    for file in ("recipe.yaml", "run.json"):
        if not (path / file).is_file():
            raise UserError(f"{path}: skipped: no {file}; training has not finished an epoch yet")
    begun = folder.info()
    if begun.status != "finished":
        raise UserError(f"{path}: {begun.status}" + (f" ({begun.reason})" if begun.reason else ""))
    known = folder.finished_info()
    # The values as they are: a report also covers runs whose plug-in is not installed here.
    values = yaml.parse_mapping(folder.read("recipe.yaml").decode(), "recipe.yaml")
    folder.check("history.csv")
    own = values["training"].get("select", "best")
    weights = weights or own
    row = {**_facts(known, values), "path": path, "weights": weights, "data": data}
    row["has_slack"], row["is_own"] = weights == own, weights == own and data == OWN
    if data != OWN and (other := known.other_tests.get(data)):
        row["task"], row["test_data"] = other.task, other.test_data
    ood, layers = folder.read_table("ood"), folder.read_table("layers")
    ood, layers = (
        t[(t["weights"] == weights) & (t["data"] == t["split"].map({"test": data}).fillna(OWN))]
        for t in (ood, layers)
    )
    layers = tables.over_seeds(layers, is_root=row["is_root"])
    checked = ood[ood["split"] == "validation"]
    row["validation_grid"] = dict(zip(checked["gamma"], checked["value"], strict=True))
    mine = layers[layers["split"] == "validation"].sort_values("layer")
    row["validation_metric"] = float(mine["metric"].iloc[-1]) if len(mine) else math.nan
    named = {"noise": "perturbation"}
    return _Read(row, ood[ood["split"] == "test"].rename(columns=named), layers.rename(columns=named))


def _facts(known: FinishedInfo, values: dict[str, Any]) -> dict[str, Any]:
    """The columns of `runs` that run.json and recipe.yaml have."""
    model, failing = values["model"], {}
    for word in _FAILING if not known.feasible else ():
        if layers := [one.layer for one in known.verdicts if one.verdict == word]:
            failing[word] = layers
    return {
        **{name: getattr(known, name) for name in _RECORDED},
        "metric": known.metric.name,
        "higher_is_better": known.metric.higher_is_better,
        "is_root": known.metric.of_mean == "root",
        "of_clips": known.windows_of_clips,
        "n_layers": known.layers,
        "validation_loss": known.best.validation_loss,
        "best_epoch": known.best.epoch,
        "failing": failing,
        "test_data": known.test_data or "",
        "frozen_weights": known.frozen_weights or "",
        "settings": flat_values(values),
        "kind": values["noise"]["kind"],
        "model": model,
        "pretrained": str(model.get("pretrained") or ""),
        "epochs": values["training"].get("epochs"),
        "descent": values["descent"],
        "published": values.get("published"),
        "reproduces": values.get("reproduces") or "",
        "task": values["task"],
        "is_kept": (values.get("checkpoints") or {}).get("keep") != "none-when-finished",
    }


def _joined(runs: Sequence[_Read]) -> Frames:
    facts = pd.DataFrame([run.row for run in runs])
    facts.index.name = "run"
    facts = facts.assign(edition="", measure="", is_repeated=False, is_ablation=False)
    ood, layers = (
        pd.concat([t.assign(run=n) for n, t in enumerate(tables)], ignore_index=True)
        for tables in ([run.ood for run in runs], [run.layers for run in runs])
    )
    return Frames(facts, _points(ood, facts), layers, _NO_BINS)


_NO_BINS = pd.DataFrame(
    columns=["left", "right", "share", "cumulative", "run", "perturbation", "gamma"]
)


def _points(ood: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The metric of each run at each level: NaN where it is NaN for one noise seed.

    `low` and `high` are the ends of its interval over test examples, `input` the metric of the
    noisy input itself, `place` is ID or OOD, `drawn` the noise seeds.
    """
    grouped = ood.groupby(["run", "perturbation", "gamma"])
    names = ["value", "low", "high", "input"]
    table = grouped[names].mean().where(grouped[names].count().eq(grouped.size(), axis=0))
    table["n"] = grouped["n"].first()
    drawn = {key: tuple(sorted({*seeds})) for key, seeds in grouped["seed"]}
    table["drawn"] = pd.Series(drawn, index=table.index)
    table = table.reset_index()
    table["noise_seeds"] = table["drawn"].map(len).astype(int)
    trained = runs["gamma_train"].loc[table["run"]]
    levels = zip(table["perturbation"], table["gamma"], trained, strict=True)
    table["place"] = [distribution(*level) for level in levels]
    return table


def _bins(frames: Frames) -> Iterable[pd.DataFrame]:
    """The histogram of layer ratios of each run, at the level of training."""
    evaluated = frames.points[["run", "perturbation"]].drop_duplicates()
    for run, kind in evaluated.itertuples(index=False):
        own = frames.row(run)
        level = training_level(kind, own.gamma_train)
        keys = {"split": "test", "data": own.data, "weights": own.weights, "noise": kind}
        losses = [f"loss_{layer}" for layer in range(1, own.n_layers + 1)]
        try:
            examples = RunFolder(own.path).read_examples(losses, **keys, gamma=level)
        except UserError as error:
            frames.warnings.append(str(error))
            continue
        yield tables.ratio_bins(examples).assign(run=run, perturbation=kind, gamma=level)


def _set_editions(frames: Frames) -> None:
    """Number the test data and frozen weights of a recipe where its runs have several.

    Their recipes are equal, the files were replaced: such runs are never compared. Number 1 is that
    of most runs; runs that were not evaluated belong to it.
    """
    runs = frames.runs
    for (recipe, _), mine in runs.groupby(["recipe", "pretrained"]):
        files = mine["test_data"] + "/" + mine["frozen_weights"]
        order = [*files[mine["test_data"] != ""].value_counts().index]
        if len(order) < 2:
            continue
        frames.warnings.append(
            f"{recipe}: the runs have {len(order)} different sets of test data or frozen weights; "
            "they are shown apart and not compared"
        )
        for run, one in files.items():
            number = str(order.index(one) + 1) if one in order else "1"
            runs.at[run, "edition"] = number
            runs.at[run, "settings"] = {**runs.at[run, "settings"], "test data": number}
            runs.at[run, "variant"] += f"-{number}" if number != "1" else ""


def _about_evaluations(frames: Frames) -> Iterable[str]:
    """Warnings of runs without a curve, and of groups whose seeds have different levels."""
    runs = frames.runs
    # A search that keeps no weights cannot have a curve.
    awaited = runs[runs["is_kept"] & ~runs.index.isin(frames.points["run"])]
    if len(awaited):
        command = as_command("eval-ood", awaited["path"].iloc[0])
        yield f"not evaluated yet and without a curve: {len(awaited)} runs; for example `{command}`"
    table = frames.points.join(runs[GROUP], on="run")
    for (recipe, objective, _, kind), rows in table.groupby([*GROUP, "perturbation"]):
        seeds = rows.groupby("gamma")["run"].nunique()
        missing = seeds.index[seeds < rows["run"].nunique()]
        if len(missing):
            levels = ", ".join(f"{gamma:g}" for gamma in missing)
            yield (
                f"{recipe}, {objective}, {kind} noise: only some seeds were evaluated at {levels}, "
                f"which curves leave out (one run: {frames.row(rows['run'].iloc[0]).path})"
            )


# ---------------------------------------------------------------- sweeps


def _read_sweeps(frames: Frames, folders: Sequence[Path]) -> None:
    """Every sweep with a finished trial; and a warning for each without one or damaged."""
    files = {path.resolve(): path for f in folders for path in files_below(f, ["sweep.json"])}
    for file in sorted(files.values()):
        try:
            sweep = _sweep(file.parent)
        except (OSError, ValueError, KeyError) as error:
            frames.warnings.append(f"{file.parent}: damaged ({error})")
            continue
        if sweep.finished.empty:
            frames.warnings.append(f"{file.parent}: skipped: the sweep has no finished run yet")
        else:
            frames.sweeps.append(sweep)


def _sweep(folder: Path) -> Sweep:
    info = json.loads((folder / "sweep.json").read_bytes())
    words = dict.fromkeys(["setting", "arm", "run", "reason", *info["keys"]], str)
    # A setting may be the word `null`.
    trials, best = (
        pd.read_csv(folder / name, dtype=words, keep_default_na=False, na_values=[""])
        for name in ("trials_wide.csv", "best.csv")
    )
    for key in info["keys"]:
        numbers = pd.to_numeric(trials[key], errors="coerce")
        if numbers.notna().equals(trials[key].notna()):
            trials[key], best[key] = numbers, pd.to_numeric(best[key])
    return Sweep(folder, info, trials.fillna({"setting": ""}), best.fillna({"setting": ""}))
