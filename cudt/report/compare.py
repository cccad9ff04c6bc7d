"""Who is compared with whom: decided once, as columns of `runs`, for every table, figure and page.

    group     runs that differ in nothing but their seed
    cell      what runs must share to be compared: recipe, metric, depth, γ_train, the settings of
              the task, pretrained model, selected weights and test data
    family    what one chart may show: as a cell, but any depth, γ_train and setting of the task
    constraints   what is unlike the paper in the kind of constraints

Each kind of constraints of a cell (and each group, where a sweep repeats settings on seeds) is
compared with the ERM runs of the same model settings. A side is the mean over its seeds; where its runs differ in more than their seed, or only some were evaluated, both
sides are the best of their runs on validation data, as in the paper.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from cudt.config import plugins
from cudt.config import recipe as recipes
from cudt.config.differences import (
    differing_keys,
    flat_settings,
    names_apart,
    without_descent,
)
from cudt.report.frames import GROUP, Frames, each
from cudt.utils.errors import UserError
from cudt.utils.text import as_command, ranges

#: The paper's objective and the one that all others are compared with: both sides of its tables.
CONSTRAINED, BASELINE = "constrained", "erm"
SIDES = (CONSTRAINED, BASELINE)
#: The settings that make another kind of constraint, with the value of the paper.
PAPER_KIND = {"descent.form": "linear", "descent.gradient": "full", "descent.decay": "coupled"}
#: Settings that may differ from a published recipe: the paper searches or compares them, or they
#: change no result.
_FREE = ("descent.", "noise.gamma_train", "training.log_every", "training.checkpoint_every")
#: Models that the paper has in several depths; it has pretrained ones as a whole.
OF_ANY_DEPTH = ("DUST", "UT")

Group = tuple[str, str, str]


# ---------------------------------------------------------------- columns of runs


@dataclass(frozen=True, order=True)
class Cell:
    """What runs must share to be compared; also a cell of the paper's tables."""

    model: str
    """The recipe; in a table of the paper, the name of the model."""
    metric: str
    layers: int
    gamma_train: float
    dataset: str
    """The name of the task; in a table of the paper, of the data set."""
    task: str = ""
    """The task's settings as JSON."""
    weights: str = "best"
    origin: str = ""
    """What sets its family apart, as JSON."""
    loss: str = ""
    """The task's loss f, where it is not the task's usual one."""

    def __str__(self) -> str:
        return (
            f"{self.model} on {self.dataset}, L = {self.layers}, γ_train = {self.gamma_train:g}"
            f"{self.apart}"
        )

    @property
    def apart(self) -> str:
        """An unusual loss, and weights that are not the best: `, last epoch`."""
        loss = f", {self.loss.replace('_', ' ')} loss" if self.loss else ""
        return loss + (", last epoch" if self.weights == "last" else "")


def assign(frames: Frames) -> None:
    """Add the columns that say who is compared with whom."""
    runs = frames.runs
    rows = each(runs)
    runs["group"] = [*zip(*(runs[name] for name in GROUP), strict=True)]
    runs["origin"] = [json.dumps(_origin(row)) for row in rows]
    rows = each(runs)
    runs["cell"] = pd.Series([_cell(row) for row in rows], index=runs.index, dtype=object)
    runs["is_constrained"] = [is_constrained(row.objective) for row in rows]
    runs["failing"] = [row.failing if is_constrained(row.objective) else {} for row in rows]
    runs["is_published"] = [_is_published(row) for row in rows]
    runs["constraints"] = [constraint_kind(row.objective, row.settings) for row in rows]
    runs["model_text"] = [json.dumps(row.model, sort_keys=True) for row in rows]
    runs["family"] = ""
    for name, mine in families(runs).items():
        runs.loc[mine, "family"] = name
    noises: dict[int, dict[str, None]] = {run: {} for run in runs.index}
    for run, kind in zip(frames.points["run"], frames.points["perturbation"], strict=True):
        noises[run][kind] = None
    runs["noises"] = [tuple(kinds) for kinds in noises.values()]


def _origin(row: Any) -> dict[str, Any]:
    return {
        "model.pretrained": row.pretrained,
        "task.loss": row.loss,
        "training.select": row.weights,
        "test data": row.edition,
    }


def _cell(row: Any) -> Cell:
    task = row.task
    usual = usual_loss(task["name"])
    return Cell(
        *(row.recipe, row.metric, row.n_layers, row.gamma_train, task["name"]),
        task=json.dumps(task, separators=(",", ":"), ensure_ascii=False),
        weights=row.weights,
        origin=row.origin,
        loss=row.loss if row.loss and row.loss != usual else "",
    )


@cache
def usual_loss(task: str) -> str | None:
    """The default of `task.loss`; None for tasks with one loss, and without the task's plug-in."""
    try:
        fields = plugins.section("task", task).model_fields
    except UserError:
        return None
    return fields["loss"].default if "loss" in fields else None


def constraint_kind(objective: str, settings: Mapping[str, Any]) -> str:
    """What is unlike the paper in the constraints: `ladder`, `proxy, decoupled`; else empty."""
    if not is_constrained(objective):
        return ""
    found = {key: settings.get(key, usual) for key, usual in PAPER_KIND.items()}
    return ", ".join(str(found[key]) for key, usual in PAPER_KIND.items() if found[key] != usual)


def families(runs: pd.DataFrame) -> dict[str, list[int]]:
    """The runs of each family, by the recipe's name and, where it has several, what sets it apart."""
    named = {}
    for recipe, mine in runs.groupby("recipe", sort=False):
        parts = [part for _, part in mine.groupby(["metric", "origin"], sort=False)]
        told = [{"metric": p["metric"].iloc[0], **json.loads(p["origin"].iloc[0])} for p in parts]
        for text, part in zip(names_apart(_with_tasks(told, parts)), parts, strict=True):
            named[f"{recipe}, {text}" if text else str(recipe)] = [*part.index]
    return named


def _with_tasks(told: list[dict[str, Any]], parts: list[pd.DataFrame]) -> list[dict[str, Any]]:
    """What sets families apart; settings of the task that explain other test data replace their
    number.
    """
    shared = []
    for part in parts:
        first, *others = (
            {key: value for key, value in settings.items() if key.startswith("task.")}
            for settings in part["settings"]
        )
        shared.append({k: v for k, v in first.items() if all(one.get(k) == v for one in others)})
    tasks = [{k: v for k, v in one.items() if all(k in each for each in shared)} for one in shared]
    editions = {one["test data"] for one in told}
    if len(editions) < 2 or any(one in tasks[:index] for index, one in enumerate(tasks)):
        return told
    return [{**one, "test data": "", **task} for one, task in zip(told, tasks, strict=True)]


def _is_published(row: Any) -> bool:
    """Whether a run is one of the paper's experiments: its recipe says so, and its settings are
    those that come with cudt, except for those that are searched.
    """
    shipped = shipped_settings(row.recipe)
    if row.published is None or shipped is None or row.edition not in ("", "1"):
        return False
    erm = row.published.get("erm") or {}
    wanted = {**shipped, **(erm if row.objective == BASELINE else {})}
    free = (*_FREE, "model.layers") if row.published["model"] in OF_ANY_DEPTH else _FREE
    settings = row.settings
    return all(
        settings.get(key) == value for key, value in wanted.items() if not key.startswith(free)
    )


@cache
def shipped_settings(name: str) -> dict[str, Any] | None:
    """The settings of a recipe that comes with cudt; None for other recipes."""
    try:
        return flat_settings(recipes.load(name))
    except UserError:
        return None


# ---------------------------------------------------------------- objectives and labels


@cache
def is_constrained(objective: str) -> bool:
    """Whether an objective keeps constraints; no where its plug-in is not installed."""
    try:
        return plugins.has("objective", objective, "is_constrained")
    except UserError:
        return False


def in_order(objectives: Iterable[str]) -> list[str]:
    """Objectives, each once: the constrained ones, the baseline, then all others by name."""
    return sorted({*objectives}, key=lambda one: (not is_constrained(one), one != BASELINE, one))


def objective_labels(objectives: Iterable[str]) -> dict[str, str]:
    """The last part of an import path; the whole where two would share it."""
    found = {name: name.rpartition(".")[2] for name in objectives}
    shared = Counter(found.values())
    return {name: text if shared[text] == 1 else name for name, text in found.items()}


def labels(runs: pd.DataFrame, longest: int = 60) -> dict[Group, str]:
    """A name for each group like `constrained (ladder) α=0.3`: what sets it apart in its recipe."""
    called = objective_labels(runs["objective"].unique())
    first = runs.drop_duplicates("group")
    named: dict[Group, str] = {}
    for (_, objective), mine in first.groupby(["recipe", "objective"], sort=False):
        kinds = [constraint_kind(objective, settings) for settings in mine["settings"]]
        several = len({*kinds}) > 1
        settings = [
            {k: v for k, v in one.items() if not several or k not in PAPER_KIND}
            for one in mine["settings"]
        ]
        different = [one for index, one in enumerate(settings) if one not in settings[:index]]
        names = [_short(name, longest) for name in _variant_names(objective, different)]
        texts = [
            f"{f'({kind}) ' if several and kind else ''}{names[different.index(one)]}".strip()
            for kind, one in zip(kinds, settings, strict=True)
        ]
        for group, text in zip(mine["group"], _distinct(texts), strict=True):
            named[group] = f"{called[objective]} {text}".strip()
    return named


def _variant_names(objective: str, variants: list[dict[str, Any]]) -> list[str]:
    """What sets variants apart; for ERM, settings of the constraints only if no others do."""
    if objective == BASELINE:
        own = [without_descent(settings) for settings in variants]
        if len({frozenset(settings.items()) for settings in own}) == len(own):
            return names_apart(own)
    return names_apart(variants)


def _short(text: str, longest: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _distinct(names: Sequence[str]) -> list[str]:
    """Number the names that shortening made equal."""
    counts = Counter(names)
    return [
        f"{name} #{names[: index + 1].count(name)}" if counts[name] > 1 else name
        for index, name in enumerate(names)
    ]


def variants_in_order(runs: pd.DataFrame) -> list[Group]:
    """Groups by objective, then by the values of the settings that differ: numbers before words."""
    first = runs.drop_duplicates("group")
    ordered: list[Group] = []
    for objective in in_order(first["objective"]):
        mine = first[first["objective"] == objective]
        keys = differing_keys([*mine["settings"]])

        def position(row: Any, keys: list[str] = keys) -> list[tuple[bool, float, str]]:
            values = [row.settings.get(key) for key in keys]
            return [
                (False, value, "") if isinstance(value, int | float) else (True, 0, str(value))
                for value in values
            ]

        ordered += [row.group for row in sorted(each(mine), key=position)]
    return ordered


# ---------------------------------------------------------------- which runs represent a side


@dataclass(frozen=True)
class Side:
    """The evaluated runs that represent one objective."""

    runs: list[int]
    best_of: int = 0
    """The number of runs the best was selected from; 0 if all runs count."""
    seeds: int = 0
    problem: str = ""
    """Why there is no run here although some were trained."""
    infeasible: tuple[tuple[str, int, str], ...] = ()
    """Folder, seed and failing layers of each run that breaks a constraint."""

    @property
    def how(self) -> str:
        """`best of 5`, or `3 seeds`."""
        if self.best_of:
            return f"best of {self.best_of}"
        return f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"

    @property
    def infeasible_text(self) -> str:
        """`seed 0: violated at layer 2`."""
        return "; ".join(f"seed {seed}: {layers}" for _, seed, layers in self.infeasible)


def matches(runs: pd.DataFrame) -> list[list[int]]:
    """The runs of each comparison of constrained with ERM.

    ERM is compared with the constrained runs of the same model settings (the paper's unconstrained
    DUST shares one dictionary between layers), or with all of the cell where there are none. Where a
    sweep repeats both on several seeds, their numbers of epochs must agree, too.
    """
    found = []
    for mine in by_cell(runs).values():
        rows = each(mine)
        constrained, baseline = ([row for row in rows if row.objective == side] for side in SIDES)
        trained = {
            row.Index: (row.model_text, row.epochs if row.is_repeated else None) for row in rows
        }
        for key in dict.fromkeys(trained[row.Index] for row in baseline):
            same = [row for row in constrained if row.model_text == key[0]]
            as_long = [
                row
                for row in same
                if None in (key[1], trained[row.Index][1]) or trained[row.Index] == key
            ]
            like = as_long or same or constrained
            erm = [row.Index for row in baseline if trained[row.Index] == key]
            for method in dict.fromkeys(map(_method, like)):
                found.append([*(row.Index for row in like if _method(row) == method), *erm])
    return found


def _method(row: Any) -> tuple[str, Group | None]:
    """The kind of constraints; and the group, where its settings were not chosen among others."""
    return row.constraints, row.group if row.is_repeated else None


def by_cell(runs: pd.DataFrame) -> dict[Cell, pd.DataFrame]:
    """The comparable runs of each cell, cells in order."""
    cells: dict[Cell, list[int]] = {}
    for row in each(runs):
        cells.setdefault(row.cell, []).append(row.Index)
    return {cell: runs.loc[cells[cell]] for cell in sorted(cells)}


def choose(runs: pd.DataFrame, noise: str) -> dict[str, Side]:
    """The runs that represent each objective among comparable runs, in every table and figure.

    Constrained and ERM decide together, and by one criterion, whether the best or all runs count.
    """
    compared = runs[runs["objective"].isin(SIDES)]
    parts = {name: runs[runs["objective"] == name] for name in runs["objective"].unique()}
    is_selected = any(_is_selected(parts[name], noise) for name in SIDES if name in parts)
    chosen = {}
    for name, mine in parts.items():
        is_best = is_selected or _is_selected(mine, noise)
        rank = criterion(compared if name in SIDES else mine)
        chosen[name] = _best(mine, noise, rank) if is_best else _every(mine, noise)
    return chosen


def _is_selected(runs: pd.DataFrame, noise: str) -> bool:
    evaluated = [noise in noises for noises in runs["noises"]]
    return runs["group"].nunique() > 1 or len({*evaluated}) > 1


def _every(runs: pd.DataFrame, noise: str) -> Side:
    found = runs[[noise in noises for noises in runs["noises"]]]
    command = as_command("eval-ood", runs["path"].iloc[0])
    return _side(found, problem="" if len(found) else f"not evaluated: {command}")


def _best(runs: pd.DataFrame, noise: str, rank: pd.Series[float]) -> Side:
    """The best of all runs; none if it was not evaluated: the second best was not selected."""
    best = runs.loc[[rank[runs.index].idxmin()]]
    if noise in best["noises"].iloc[0]:
        return _side(best, len(runs))
    command = as_command("eval-ood", best["path"].iloc[0])
    problem = f"the best by validation data is not evaluated: {command}"
    return _side(best.iloc[:0], len(runs), problem)


def _side(runs: pd.DataFrame, best_of: int = 0, problem: str = "") -> Side:
    failing = [
        (row.path.name, row.seed, failing_layers(row.failing)) for row in each(runs) if row.failing
    ]
    return Side([*runs.index], best_of, runs["seed"].nunique(), problem, tuple(failing))


def failing_layers(failing: Mapping[str, Sequence[int]]) -> str:
    """`violated at layers 1–3, 5; relaxed at layer 4`."""
    return "; ".join(
        f"{verdict} at layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"
        for verdict, layers in failing.items()
    )


def criterion(runs: pd.DataFrame) -> pd.Series[float]:
    """What these runs are ranked by on validation data, the lower the better, NaN last.

    The mean metric over the levels γ that all were scored at, else the metric at γ_train where
    sweeps scored all by it, else the loss f_L: as the sweep that scored them.
    """
    sign = np.where(runs["higher_is_better"], -1.0, 1.0)
    grids = [{*grid} for grid in runs["validation_grid"]]
    if grids and (shared := sorted(set.intersection(*grids))):
        means = [np.mean([grid[level] for level in shared]) for grid in runs["validation_grid"]]
        rank = sign * np.array(means)
    elif len(runs) and (runs["measure"] == "metric").all():
        rank = sign * runs["validation_metric"].to_numpy()
    else:
        rank = runs["validation_loss"].to_numpy(float)
    return pd.Series(np.where(np.isfinite(rank), rank, np.inf), index=runs.index)


def without_ablations(runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out the runs of ablations where other runs of the same cell and objective exist.

    An ablation varies a setting on purpose: its runs must not join the search that tables choose
    from.
    """
    keys = pd.Series(
        [*zip(runs["cell"], runs["objective"], strict=True)], index=runs.index, dtype=object
    )
    others = {*keys[~runs["is_ablation"]]}
    return runs[
        [
            not ablated or key not in others
            for key, ablated in zip(keys, runs["is_ablation"], strict=True)
        ]
    ]


def pairs(runs: pd.DataFrame) -> list[tuple[Cell, str, list[int], list[int]]]:
    """Cell, noise, and the runs of two groups that paired.csv compares: each other objective with
    ERM, and the constrained ones also with every unconstrained one.
    """
    found = []
    for cell, mine in by_cell(runs).items():
        groups = [part for _, part in mine.groupby("group", sort=False)]
        evaluated = [(group["objective"].iloc[0], _by_noise(group)) for group in groups]
        found += [
            (cell, noise, ours, baseline[noise])
            for objective, by_noise in evaluated
            for noise, ours in sorted(by_noise.items())
            for other, baseline in evaluated
            if noise in baseline and _is_compared(objective, other)
        ]
    return found


def _is_compared(objective: str, other: str) -> bool:
    if other == BASELINE:
        return objective != BASELINE
    return is_constrained(objective) and not is_constrained(other)


def _by_noise(runs: pd.DataFrame) -> dict[str, list[int]]:
    """The runs that were evaluated under each kind of noise."""
    found: dict[str, list[int]] = {}
    for row in each(runs):
        for noise in row.noises:
            found.setdefault(noise, []).append(row.Index)
    return found
