"""Run folders as tidy tables keyed by run. No other file of the report reads run folders.

    runs      one row a run: what it is, what came out of training, all its settings
    points    run × noise × γ: the metric with its interval, averaged over noise seeds
    layers    run × split × noise × γ × layer: loss and metric
    history   run × update × layer: what training logged, read when a figure asks for it

`bins` (histograms of layer ratios) and `scores` (single test examples) are read like `history`.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.config import yaml
from cudt.config.differences import flat_values
from cudt.config.levels import distribution
from cudt.evaluation.curves import input_metric, metric_and_ends
from cudt.runs import checksums, completions, examples, info, tables
from cudt.runs.find import find_runs, run_folder, subfolder
from cudt.utils.errors import UserError
from cudt.utils.shown import as_command

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
    bins: pd.DataFrame
    warnings: list[str] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)
    """What figures chose to show, by kind of noise."""

    def of(self, runs: Iterable[int]) -> Frames:
        """The tables of some of the runs."""
        chosen = [*runs]
        parts = (
            table[table["run"].isin(chosen)] for table in (self.points, self.layers, self.bins)
        )
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

    def history(self, run: int) -> pd.DataFrame:
        """What training logged: step, epoch, split, layer, name, value."""
        return tables.read_table(self.row(run).path, "history")

    def scores(self, run: int, kind: str) -> pd.DataFrame:
        """gamma, seed, id, weight and score of each test example under one kind of noise."""
        return examples.read_examples(self.row(run).results, kind)

    def test_verdicts(self, run: int) -> list[Any]:
        """The verdict on each layer's constraint on test data, under the noise of training."""
        own = self.runs.loc[run]
        table = tables.read_table(own["results"], "constraints")
        is_trained = table["gamma"] == own["gamma_train"]
        return each(table[(table["perturbation"] == own["kind"]) & is_trained])

    def samples(self, run: int) -> dict[str, bytes]:
        """The saved pictures of test examples, by file name."""
        path = self.row(run).results
        names = sorted(found.name for found in (path / "samples").glob("*.png"))
        return {name: checksums.read_checked(path, f"samples/{name}") for name in names}

    def completions(self, run: int) -> dict[str, list[dict[str, str]]]:
        """Answers to instructions, by the name of their file."""
        found = sorted((self.row(run).results / "completions").glob("*.json"))
        own = [path for path in found if "-against-" not in path.stem]
        return {path.stem: completions.read_completions(path) for path in own}

    def recipe_text(self, run: int) -> str:
        """The settings of a run as its folder has them."""
        return checksums.read_checked(self.row(run).path, "recipe.yaml").decode()


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


def read_two(first: Path, second: Path) -> Frames:
    """Two runs, numbered 0 and 1; the folders `best`, `last` and `on-…` of a run are runs, too."""
    return _joined([_read(first), _read(second)], [])


# ---------------------------------------------------------------- one folder


def _read(path: Path) -> _Read:
    try:
        return _read_whole(path)
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be read ({error.strerror})") from None


def _read_whole(results: Path) -> _Read:
    path = run_folder(results)
    if not (path / "run.json").is_file():
        raise UserError(f"{path}: skipped: training has not finished an epoch yet (no run.json)")
    if not (path / "recipe.yaml").is_file():
        raise UserError(f"{path}: damaged (no recipe.yaml)")
    inside = subfolder(results, path)
    begun = info.read_info(path, inside)
    if begun.status != "finished":
        status = begun.status or "damaged (run.json has no status)"
        raise UserError(f"{path}: {status}" + (f" ({begun.reason})" if begun.reason else ""))
    known = info.read_finished_info(path, inside)
    # The values as they are: a report also covers runs whose plug-in is not installed here.
    values = checksums.read_as(path, "recipe.yaml", _settings)
    for name in tables.TABLES:
        tables.check(path if name == "history" else results, name)
    names = ("layers", "ood", "ratio_bins", "constraints", "layer_metrics", "validation")
    read = {name: tables.read_table(results, name) for name in names}
    row = {**_of_info(known), **_of_recipe(values), "path": path, "results": results}
    row["task"] = known.other_task or values["task"]
    row["data"] = inside.data or "own"
    row["is_own"] = results == path
    row["weights"] = inside.weights or values["training"].get("select", "best")
    own = read["validation"][read["validation"]["metric"] == row["metric"]]
    row["validation_grid"] = dict(zip(own["gamma"], own["value"], strict=True))
    mine = read["layers"][read["layers"]["split"] == "validation"].sort_values("layer")
    row["validation_metric"] = float(mine["metric"].iloc[-1]) if len(mine) else math.nan
    return _Read(row, read)


def _settings(content: bytes) -> dict[str, Any]:
    return yaml.parse_mapping(content.decode(), "recipe.yaml")


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

    keys = ["run", "split", "perturbation", "gamma", "layer"]
    further = joined("layer_metrics").rename(columns={"value": "psnr"})
    # On test data, also the constraint's standard error and PSNR.
    layers = joined("layers")
    for column, table in (
        ("standard_error", joined("constraints")),
        ("psnr", further[further["name"] == PSNR]),
    ):
        layers = layers.merge(table.assign(split="test")[[*keys, column]], "left", keys)
    return Frames(facts, _points(joined("ood"), facts), layers, joined("ratio_bins"), warnings)


def _points(ood: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The metric of each run at each level: NaN where it is NaN for one noise seed.

    `low` and `high` are the ends of its interval over test examples, `input` the metric of the
    noisy input itself, `place` is ID or OOD, `drawn` the noise seeds.
    """
    names = ["value", "low", "high", "input", "psnr"]
    keys = ["run", "perturbation", "gamma"]
    spelled = {
        (number, text): name
        for number, metric in runs["metric"].items()
        for text, name in zip(
            [*metric_and_ends(metric), input_metric(metric), PSNR], names, strict=True
        )
    }
    ood = ood.assign(name=[spelled.get(key) for key in zip(ood["run"], ood["metric"], strict=True)])
    grouped = ood.groupby([*keys, "name"])["value"]
    # A pivot table would drop NaN, and with it the level.
    means = grouped.mean().where(grouped.count() == grouped.size())
    table = means.unstack("name").reindex(columns=names)
    of_level = ood.groupby(keys)
    table["n"] = of_level["n"].first()
    drawn = {key: tuple(sorted({*seeds})) for key, seeds in of_level["seed"]}
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
