"""Run folders and sweeps as tidy tables. No other file of the report reads their tables.

    runs      one row a run: what it is, what came out of training, all its settings
    points    run × noise × γ: the metric with its interval, averaged over noise seeds
    layers    run × split × noise × γ × layer: loss and metric
    history   run × update × layer: what training logged, read when a figure asks for it

What needs single examples, their scores and ratios of layers, is read like `history`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cudt.config import yaml
from cudt.config.differences import flat_values
from cudt.config.levels import distribution, training_level
from cudt.evaluation import tables
from cudt.runs.info import FinishedInfo
from cudt.runs.run import EXAMPLES, OWN, RunFolder, find_runs
from cudt.utils.errors import UserError
from cudt.utils.text import as_command

#: Runs that differ in nothing but their seed have these in common.
GROUP = ["recipe", "objective", "variant"]
#: Columns of `runs` that run.json has under the same name.
_RECORDED = (
    *("recipe", "objective", "variant", "seed", "gamma_train", "reference", "rates", "feasible"),
    *("monotone", "verdicts", "multipliers", "command", "other_tests"),
)


class Sweep(NamedTuple):
    """What a sweep says of its finished runs."""

    runs: set[str]
    """`recipe/folder` of each."""
    measure: str
    """What it scored them by."""
    is_search: bool
    """Whether it chose among settings, rather than repeating some on several seeds."""


@dataclass
class Frames:
    """The tables of some runs; `runs` is indexed by the number that is `run` in the others."""

    runs: Any
    points: pd.DataFrame
    layers: pd.DataFrame
    sweeps: list[Sweep] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def of(self, runs: Iterable[int]) -> Frames:
        """The tables of some of the runs."""
        chosen = [*runs]
        points, layers = (t[t["run"].isin(chosen)] for t in (self.points, self.layers))
        return Frames(self.runs.loc[chosen], points, layers)

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
        last = f"score_{self.row(run).n_layers}"
        table = self._examples(run, kind, ["gamma", "seed", "id", "weight", last])
        return table.rename(columns={last: "score"})

    def _examples(self, run: int, kind: str, columns: list[str], **keys: float) -> pd.DataFrame:
        own = self.row(run)
        place = {"split": "test", "data": own.data, "weights": own.weights, "noise": kind}
        return RunFolder(own.path).read_examples(columns, **place, **keys)

    def bins(self, run: int, kind: str) -> pd.DataFrame:
        """The histogram of f_l / f_{l−1} over test examples, at the level of training."""
        own = self.row(run)
        level = training_level(kind, own.gamma_train)
        losses = [f"loss_{layer}" for layer in range(1, own.n_layers + 1)]
        try:
            examples = self._examples(run, kind, losses, gamma=level)
        except ValueError:  # No such columns: stored runs keep the last score alone.
            examples = pd.DataFrame(columns=losses)
        return tables.ratio_bins(examples).assign(run=run, perturbation=kind, gamma=level)

    def test_verdicts(self, run: int) -> list[Any]:
        """The verdict on each layer's constraint on test data, under the noise of training."""
        own, rows = self.row(run), self.layers[self.layers["run"] == run]
        trained = rows["gamma"] == training_level(own.kind, own.gamma_train)
        mine = rows[(rows["split"] == "test") & (rows["perturbation"] == own.kind) & trained]
        known = RunFolder(own.path).finished_info()
        return tables.verdicts(known, mine, has_slack=own.has_slack) if len(mine) else []


def each(runs: pd.DataFrame) -> list[Any]:
    """The facts about each run; `Index` is its number."""
    return [*runs.itertuples()]


def read(folders: Sequence[Path], data: str = OWN) -> Frames:
    """Every finished run and sweep below some folders, tested on its own data or on those of another
    task; a warning for each that is left out.
    """
    found: dict[tuple[Any, ...], _Read] = {}
    warnings = []
    for path in find_runs(folders):
        try:
            run = _read(RunFolder(path), data=data)
        except (UserError, OSError) as error:
            warnings.append(str(error))
            continue
        key = (*(run[0][name] for name in GROUP), run[0]["seed"])
        used = found.setdefault(key, run)
        if used is run:
            continue
        if used[1].empty:  # Of the same run in two folders, the evaluated one counts.
            found[key], used, run = run, run, used
        same = f"the same run (recipe, settings, seed) as {used[0]['path']}"
        warnings.append(f"{run[0]['path']}: skipped: {same}")
    if not found:
        more = "".join(f"\n  {warning}" for warning in warnings[:5])
        where = ", ".join(map(str, folders))
        raise UserError(f"no finished run below {where}; create one with `cudt train`{more}")
    frames = _joined([found[key] for key in sorted(found)])
    frames.warnings = warnings
    frames = _on_one_test_set(frames)
    frames.warnings += _about_evaluations(frames)
    for file in sorted({one for f in folders for one in f.rglob("sweep.json")}):
        try:
            frames.sweeps.append(_sweep(file.parent))
        except (OSError, ValueError, KeyError) as error:
            frames.warnings.append(f"{file.parent}: damaged ({error})")
    return frames


def read_two(first: Path, second: Path, weights: str | None = None, data: str = OWN) -> Frames:
    """Two runs, numbered 0 and 1; with some of their weights, on some test data."""
    return _joined([_read(RunFolder(path), weights, data) for path in (first, second)])


#: A run's row of `runs`, its ood.csv and its layers.csv.
_Read = tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]


def _read(folder: RunFolder, weights: str | None = None, data: str = OWN) -> _Read:
    path = folder.path
    for name in ("run.json", "recipe.yaml"):
        if not (path / name).is_file():
            raise UserError(f"{path}: skipped: no {name}; training has not finished an epoch yet")
    begun = folder.info()
    if begun.status != "finished":
        raise UserError(f"{path}: {begun.status}" + (f" ({begun.reason})" if begun.reason else ""))
    # The values as they are: a report also covers runs whose plug-in is not installed here.
    values = yaml.parse_mapping(folder.read("recipe.yaml").decode(), "recipe.yaml")
    for name in ("history.csv", EXAMPLES):
        folder.check(name)
    own = values["training"].get("select", "best")
    weights = weights or own
    row = {**_facts(folder.finished_info(), values), "path": path, "weights": weights, "data": data}
    row |= {"has_slack": weights == own, "is_own": weights == own and data == OWN}
    if other := row["other_tests"].get(data):
        row |= {"task": other.task, "test_data": other.test_data}
    ood, layers = (
        table[(table["weights"] == weights) & table["data"].isin([data, OWN])]
        for table in (folder.read_table("ood"), folder.read_table("layers"))
    )
    layers = layers[(layers["data"] == data) | (layers["split"] != "test")]
    layers = tables.over_seeds(layers, is_root=row["is_root"])
    checked = ood[ood["split"] == "validation"]
    row["validation_grid"] = dict(zip(checked["gamma"], checked["value"], strict=True))
    mine = layers[layers["split"] == "validation"].sort_values("layer")
    row["validation_metric"] = float(mine["metric"].iloc[-1]) if len(mine) else math.nan
    ood, named = ood[(ood["split"] == "test") & (ood["data"] == data)], {"noise": "perturbation"}
    return row, ood.rename(columns=named), layers.rename(columns=named)


def _facts(known: FinishedInfo, values: dict[str, Any]) -> dict[str, Any]:
    """The columns of `runs` that run.json and recipe.yaml have."""
    failing: dict[str, list[int]] = {}
    for one in known.verdicts:
        if one.verdict in ("violated", "relaxed") and not known.feasible:
            failing.setdefault(one.verdict, []).append(one.layer)
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
        "pretrained": str(values["model"].get("pretrained") or ""),
        "epochs": values["training"].get("epochs"),
        **{name: values[name] for name in ("model", "task", "descent")},
        **{name: values.get(name) for name in ("published", "reproduces")},
        "is_kept": (values.get("checkpoints") or {}).get("keep") != "none-when-finished",
    }


def _sweep(folder: Path) -> Sweep:
    info = json.loads((folder / "sweep.json").read_bytes())
    trials = pd.read_csv(folder / "trials_wide.csv", dtype=str)
    finished = trials[trials["state"] == "finished"]
    is_search = any(arm["sampler"] != "seeds" for arm in info["arms"].values())
    return Sweep({*finished["run"].dropna()}, info["measure"], is_search)


def _joined(runs: Sequence[_Read]) -> Frames:
    facts = pd.DataFrame([row for row, _, _ in runs]).rename_axis("run")
    facts = facts.assign(measure="", is_repeated=False, is_ablation=False)
    ood = pd.concat([one.assign(run=number) for number, (_, one, _) in enumerate(runs)])
    layers = pd.concat([one.assign(run=number) for number, (_, _, one) in enumerate(runs)])
    return Frames(facts, _points(ood, facts), layers.reset_index(drop=True))


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


def _on_one_test_set(frames: Frames) -> Frames:
    """Leave out runs on other test data or frozen weights than most runs of their recipe and task
    settings: files were replaced, so such runs must not share a mean or be compared.
    """
    tested = frames.runs[frames.runs["test_data"] != ""]
    files = tested["test_data"] + tested["frozen_weights"]
    same = [tested["recipe"], tested["pretrained"], tested["task"].map(json.dumps)]
    usual = files.groupby(same).transform(lambda found: found.mode()[0])
    other = tested[files != usual]
    what = "skipped: other test data or frozen weights than most runs of the recipe"
    warnings = [*frames.warnings, *(f"{path}: {what}" for path in other["path"])]
    return replace(frames.of(frames.runs.index.difference(other.index)), warnings=warnings)


def _about_evaluations(frames: Frames) -> Iterator[str]:
    """Warnings of runs without a curve, and of groups whose seeds have different levels."""
    runs = frames.runs
    # A search that keeps no weights cannot have a curve.
    awaited = runs[runs["is_kept"] & ~runs.index.isin(frames.points["run"])]
    if len(awaited):
        command = as_command("eval-ood", awaited["path"].iloc[0])
        yield f"not evaluated yet and without a curve: {len(awaited)} runs; for example `{command}`"
    table = frames.points.join(runs[GROUP], on="run")
    for (recipe, objective, _, kind), rows in table.groupby([*GROUP, "perturbation"]):
        counts = rows.groupby("gamma")["run"].nunique()
        missing = counts.index[counts < rows["run"].nunique()]
        if len(missing):
            levels = ", ".join(f"{gamma:g}" for gamma in missing)
            some = f"only some seeds were evaluated at {levels}, which curves leave out"
            yield f"{recipe}, {objective}, {kind} noise: {some}"
