"""Run folders as tidy tables keyed by run. No other file of the report reads run folders.

    runs      one row a run: what it is, what came out of training, all its settings
    points    run × noise × γ: the metric with its interval, averaged over noise seeds
    layers    run × split × noise × γ × layer: loss and metric
    history   run × update × layer: what training logged, read when a figure asks for it

`bins` (histograms of layer ratios) and `scores` (single test examples) are read like `history`,
from examples.parquet.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.config import yaml
from cudt.config.differences import flat_values
from cudt.config.levels import distribution, training_level
from cudt.evaluation import tables
from cudt.runs import info
from cudt.runs.run import OWN, RunFolder, find_runs
from cudt.utils.errors import UserError
from cudt.utils.text import as_command

#: Runs that differ in nothing but their seed have these in common.
GROUP = ["recipe", "objective", "variant"]
#: The verdicts in run.json of constraints that are not kept.
_FAILING = ("violated", "relaxed")
#: A metric that video tasks measure besides their own.
PSNR = "PSNR"
#: More runs without an evaluation than these share one warning.
_MANY = 5


@dataclass
class Frames:
    """The tables of some runs; `runs` is indexed by the number that is `run` in the others."""

    runs: Any
    points: pd.DataFrame
    layers: pd.DataFrame
    warnings: list[str] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)
    """What figures chose to show, by kind of noise."""

    def of(self, runs: Iterable[int]) -> Frames:
        """The tables of some of the runs."""
        chosen = [*runs]
        parts = (table[table["run"].isin(chosen)] for table in (self.points, self.layers))
        return Frames(self.runs.loc[chosen], *parts)

    def row(self, run: int) -> Any:
        """The facts about one run."""
        return self.runs.loc[run]

    def curve(self, run: int, kind: str) -> dict[float, float]:
        """The metric of a run by level; empty if it was not evaluated under this noise."""
        return self._curves.get((run, kind), {})

    @cached_property
    def _curves(self) -> dict[tuple[int, str], dict[float, float]]:
        found: dict[tuple[int, str], dict[float, float]] = {}
        names = ("run", "perturbation", "gamma", "value")
        for run, kind, gamma, value in zip(*(self.points[name] for name in names), strict=True):
            found.setdefault((run, kind), {})[gamma] = value
        return found

    def folder(self, run: int) -> RunFolder:
        """The folder of a run."""
        return RunFolder(self.row(run).path)

    def history(self, run: int) -> pd.DataFrame:
        """What training logged: step, epoch, split, layer, name, value."""
        return self.folder(run).read_table("history")

    @cached_property
    def bins(self) -> pd.DataFrame:
        """Histograms of the layer ratios of single test examples, at the level of training."""
        found = []
        evaluated = self.points[["run", "perturbation"]].drop_duplicates()
        for run, kind in evaluated.itertuples(index=False):
            own = self.row(run)
            level = training_level(kind, own.gamma_train)
            table = _bins(own.path, own.weights, own.data, kind, level, own.n_layers)
            found.append(table.assign(run=run, perturbation=kind, gamma=level))
        return pd.concat(found, ignore_index=True) if found else _no_bins()

    def scores(self, run: int, kind: str) -> pd.DataFrame:
        """gamma, seed, id, weight and score of each test example under one kind of noise."""
        own = self.row(run)
        last = f"score_{own.n_layers}"
        keys = {"split": "test", "data": own.data, "weights": own.weights, "noise": kind}
        columns = ["gamma", "seed", "id", "weight", last]
        return self.folder(run).read_examples(columns, **keys).rename(columns={last: "score"})

    def test_verdicts(self, run: int) -> list[Any]:
        """The verdict on each layer's constraint on test data, under the noise of training."""
        own, rows = self.row(run), self.layers[self.layers["run"] == run]
        trained = rows["gamma"] == training_level(own.kind, own.gamma_train)
        mine = rows[(rows["split"] == "test") & (rows["perturbation"] == own.kind) & trained]
        known = self.folder(run).finished_info()
        return tables.verdicts(known, mine, has_slack=own.has_slack) if len(mine) else []

    def samples(self, run: int) -> dict[str, bytes]:
        """The saved pictures of test examples, by file name."""
        return {path.name: content for path, content in self._extra(run, "samples/*.png")}

    def completions(self, run: int) -> dict[str, list[dict[str, str]]]:
        """Answers to instructions, by the name of their file."""
        found = self._extra(run, "completions/*.json")
        return {p.stem: json.loads(text) for p, text in found if "-against-" not in p.stem}

    def _extra(self, run: int, pattern: str) -> list[tuple[Path, bytes]]:
        folder = self.folder(run)
        found = sorted((folder.path / "extra").glob(pattern))
        return [(path, folder.read(path.relative_to(folder.path).as_posix())) for path in found]

    def recipe_text(self, run: int) -> str:
        """The settings of a run as its folder has them."""
        return self.folder(run).read("recipe.yaml").decode()


@lru_cache(maxsize=4096)
def _bins(
    path: Path, weights: str, data: str, kind: str, level: float, n_layers: int
) -> pd.DataFrame:
    keys = {"split": "test", "data": data, "weights": weights, "noise": kind, "gamma": level}
    losses = [f"loss_{layer}" for layer in range(1, n_layers + 1)]
    try:
        return tables.ratio_bins(RunFolder(path).read_examples(losses, **keys))
    except UserError:  # paired.py warns of a damaged file
        return _no_bins()


def _no_bins() -> pd.DataFrame:
    columns = ["left", "right", "share", "cumulative", "run", "perturbation", "gamma"]
    return pd.DataFrame(columns=columns)


@dataclass
class _Read:
    """A run folder in memory: its row of `runs`, and its tables by name."""

    row: dict[str, Any]
    tables: dict[str, pd.DataFrame]

    @property
    def is_evaluated(self) -> bool:
        return not self.tables["ood"].empty


def each(runs: pd.DataFrame) -> list[Any]:
    """The facts about each run; `Index` is its number."""
    return [*runs.itertuples()]


def read(folders: Sequence[Path]) -> Frames:
    """Every finished run below some folders, sorted; a warning for each that is left out."""
    paths = find_runs(folders)
    warnings = [
        f"{folder}: no runs found" for folder in folders if paths and not find_runs([folder])
    ]
    warnings += [line for folder in folders for line in _closed_below(folder)]
    found: dict[tuple[Any, ...], _Read] = {}
    for path in paths:
        try:
            run = _read(path)
        except UserError as error:
            warnings.append(str(error))
            continue
        key = (*(run.row[name] for name in GROUP), run.row["seed"])
        twin = found.setdefault(key, run)
        if twin is not run:
            used, other = (run, twin) if run.is_evaluated and not twin.is_evaluated else (twin, run)
            found[key] = used
            same = f"the same run (recipe, settings, seed) as {used.row['path']}"
            warnings.append(f"{other.row['path']}: skipped: {same}")
    runs = [found[key] for key in sorted(found)]
    if not runs:
        more = "".join(f"\n  {warning}" for warning in warnings)
        where = ", ".join(map(str, folders))
        raise UserError(f"no finished run below {where}; create one with `cudt train`{more}")
    warnings += _about_unevaluated([run.row["path"] for run in runs if _is_awaited(run)])
    frames = _joined(_apart_by_test_data(runs, warnings), warnings)
    warnings += _about_uneven_grids(frames)
    return frames


def read_two(first: Path, second: Path, weights: str | None = None, data: str = OWN) -> Frames:
    """Two runs, numbered 0 and 1; with some of their weights, on some test data."""
    return _joined([_read(path, weights, data) for path in (first, second)], [])


# ---------------------------------------------------------------- one folder


def _read(path: Path, weights: str | None = None, data: str = OWN) -> _Read:
    try:
        return _read_whole(RunFolder(path), weights, data)
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be read ({error.strerror})") from None


def _read_whole(folder: RunFolder, weights: str | None, data: str) -> _Read:
    path = folder.path
    if not (path / "run.json").is_file():
        raise UserError(f"{path}: skipped: training has not finished an epoch yet (no run.json)")
    if not (path / "recipe.yaml").is_file():
        raise UserError(f"{path}: damaged (no recipe.yaml)")
    begun = folder.info()
    if begun.status != "finished":
        status = begun.status or "damaged (run.json has no status)"
        raise UserError(f"{path}: {status}" + (f" ({begun.reason})" if begun.reason else ""))
    known = folder.finished_info()
    # The values as they are: a report also covers runs whose plug-in is not installed here.
    values = yaml.parse_mapping(folder.read("recipe.yaml").decode(), "recipe.yaml")
    folder.check("history.csv")
    row = {**_of_info(known), **_of_recipe(values), "path": path, "data": data}
    own = row["weights"]
    row["weights"] = weights = weights or own
    row["has_slack"], row["is_own"] = weights == own, weights == own and data == OWN
    if data != OWN:
        other = known.other_tests.get(data)
        row["task"], row["test_data"] = (
            (other.task, other.test_data) if other else (values["task"], "")
        )
    found = {name: folder.read_table(name) for name in ("ood", "layers")}
    for name, table in found.items():
        is_mine = (table["weights"] == weights) & table["data"].isin([data, OWN])
        found[name] = table[is_mine & ((table["data"] == data) | (table["split"] != "test"))]
    found["layers"] = tables.over_seeds(found["layers"], is_root=row["is_root"])
    ood, layers = found["ood"], found["layers"]
    checked = ood[ood["split"] == "validation"]
    row["validation_grid"] = dict(zip(checked["gamma"], checked["value"], strict=True))
    mine = layers[layers["split"] == "validation"].sort_values("layer")
    row["validation_metric"] = float(mine["metric"].iloc[-1]) if len(mine) else math.nan
    found["ood"] = ood[ood["split"] == "test"]
    return _Read(
        row, {name: t.rename(columns={"noise": "perturbation"}) for name, t in found.items()}
    )


def _of_info(known: info.FinishedInfo) -> dict[str, Any]:
    """The columns of `runs` that run.json has."""
    is_feasible = known.feasible
    return {
        "recipe": known.recipe,
        "objective": known.objective,
        "variant": known.variant,
        "seed": known.seed,
        "metric": known.metric.name,
        "higher_is_better": known.metric.higher_is_better,
        "is_root": known.metric.of_mean == "root",
        "of_clips": known.windows_of_clips,
        "n_layers": known.layers,
        "gamma_train": known.gamma_train,
        "reference": known.reference,
        "rates": known.rates,
        "feasible": is_feasible,
        "monotone": known.monotone,
        "validation_loss": known.best.validation_loss,
        "best_epoch": known.best.epoch,
        "verdicts": known.verdicts,
        "failing": {} if is_feasible else _failing(known),
        "multipliers": known.multipliers,
        "test_data": known.test_data or "",
        "frozen_weights": known.frozen_weights or "",
        "command": known.command,
    }


def _failing(known: info.FinishedInfo) -> dict[str, list[int]]:
    """The layers that are violated, or only kept as relaxed by resilience, by this word."""
    found = {word: [v.layer for v in known.verdicts if v.verdict == word] for word in _FAILING}
    return {word: layers for word, layers in found.items() if layers}


def _of_recipe(values: dict[str, Any]) -> dict[str, Any]:
    """The columns of `runs` that recipe.yaml has."""
    model, task = values["model"], values["task"]
    return {
        "settings": flat_values(values),
        "kind": values["noise"]["kind"],
        "model": model,
        "model_name": model["name"],
        "pretrained": str(model.get("pretrained") or ""),
        "lora": model.get("lora"),
        "loss": task.get("loss") or "",
        "epochs": values["training"].get("epochs"),
        "descent": values["descent"],
        "published": values.get("published"),
        "reproduces": values.get("reproduces") or "",
        "task": task,
        "weights": values["training"].get("select", "best"),
        "kept": (values.get("checkpoints") or {}).get("keep") != "none-when-finished",
        "edition": "",
        "measure": "",
        "is_repeated": False,
        "is_ablation": False,
    }


# ---------------------------------------------------------------- all folders


def _joined(runs: Sequence[_Read], warnings: list[str]) -> Frames:
    facts = pd.DataFrame([run.row for run in runs])
    facts.index.name = "run"
    facts["is_evaluated"] = [run.is_evaluated for run in runs]

    def joined(name: str) -> pd.DataFrame:
        parts = [run.tables[name].assign(run=number) for number, run in enumerate(runs)]
        return pd.concat(parts, ignore_index=True)

    layers, points = joined("layers"), _points(joined("ood"), facts)
    for table, column in ((layers, "metric"), (points, "value")):
        is_rmse = (facts["metric"] == "RMSE").loc[table["run"]].to_numpy()
        table["psnr"] = tables.psnr(table[column].where(is_rmse))
    return Frames(facts, points, layers, warnings)


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


def _apart_by_test_data(runs: Sequence[_Read], warnings: list[str]) -> list[_Read]:
    """Number the test data and frozen weights of a recipe where its runs have several.

    Their recipes are equal, the files were replaced: such runs are never compared. Number 1 is that
    of most runs; runs that were not evaluated belong to it.
    """
    counts: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for run in runs:
        family = (run.row["recipe"], run.row["pretrained"])
        if run.row["test_data"]:
            data = (run.row["test_data"], run.row["frozen_weights"])
            counts.setdefault(family, Counter())[data] += 1
    several = {family: found for family, found in counts.items() if len(found) > 1}
    for (recipe, _), found in several.items():
        warnings.append(
            f"{recipe}: the runs have {len(found)} different sets of test data or frozen weights; "
            "they are shown apart and not compared"
        )
    marked = []
    for run in runs:
        mine = several.get((run.row["recipe"], run.row["pretrained"]))
        if mine is not None:
            order = [data for data, _ in mine.most_common()]
            data = (run.row["test_data"], run.row["frozen_weights"])
            edition = str(order.index(data) + 1) if data in order else "1"
            variant = run.row["variant"] + (f"-{edition}" if edition != "1" else "")
            settings = {**run.row["settings"], "test data": edition}
            row = {**run.row, "edition": edition, "variant": variant, "settings": settings}
            run = replace(run, row=row)
        marked.append(run)
    return marked


# ---------------------------------------------------------------- warnings


def _closed_below(folder: Path) -> list[str]:
    """A warning for each folder that may not be read: runs in it would be missing silently."""
    below = [Path(path, name) for path, names, _ in os.walk(folder) for name in sorted(names)]
    closed = [path for path in (folder, *below) if not os.access(path, os.R_OK | os.X_OK)]
    return [f"{path}: cannot be read (permission denied)" for path in closed]


def _is_awaited(run: _Read) -> bool:
    """Whether a curve is missing: a search that keeps no weights cannot have one."""
    return not run.is_evaluated and run.row["kept"]


def _about_unevaluated(paths: Sequence[Path]) -> list[str]:
    """A warning for each run without an evaluation; one for all of many, as a sweep leaves them."""
    if len(paths) > _MANY:
        return [
            f"{len(paths)} runs are not evaluated yet and have no curve: {paths[0]} and others; "
            "run `cudt eval-ood` on the ones you need"
        ]
    return [
        f"{path}: not evaluated yet and has no curve; run `{as_command('eval-ood', path)}`"
        for path in paths
    ]


def _about_uneven_grids(frames: Frames) -> list[str]:
    """A warning for each group whose seeds were evaluated at different levels."""
    lines = []
    table = frames.points.join(frames.runs[GROUP], on="run")
    for (recipe, objective, _, kind), rows in table.groupby([*GROUP, "perturbation"]):
        seeds = rows.groupby("gamma")["run"].nunique()
        missing = seeds.index[seeds < rows["run"].nunique()]
        if len(missing):
            levels = ", ".join(f"{gamma:g}" for gamma in missing)
            path = frames.row(rows["run"].iloc[0]).path
            lines.append(
                f"{recipe}, {objective}, {kind} noise: only some seeds were evaluated at {levels}, "
                f"which curves leave out (one of the runs: {path})"
            )
    return lines
