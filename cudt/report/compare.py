"""Who is compared with whom: decided once, as columns of `runs`, for every table, figure and page.

    group         runs that differ in nothing but their seed
    label         its name: the objective and what sets it apart in its recipe
    cell          what runs must share to be compared
    family        what one chart may show: as a cell, but any depth, γ_train and task settings
    constraints   what is unlike the paper in the kind of constraints
    measure, is_repeated, is_ablation   what sweeps say of a run

Each kind of constraints of a cell (and each group, where a sweep repeats settings on seeds) is
compared with the ERM runs of the same model settings. A side is the mean over its seeds; where its
runs differ in more than their seed, or only some were evaluated, both sides are the best of their
runs on validation data, as in the paper.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from cudt.config import plugins
from cudt.config import recipe as recipes
from cudt.config.differences import flat_settings, names_apart
from cudt.report.frames import GROUP, Frames, each
from cudt.utils.errors import UserError
from cudt.utils.text import as_command, ranges

#: The paper's objective and the one that all others are compared with: both sides of its tables.
CONSTRAINED, BASELINE = "constrained", "erm"
SIDES = (CONSTRAINED, BASELINE)
#: The settings that make another kind of constraint, with the value of the paper.
_PAPER_KIND = {"descent.form": "linear", "descent.gradient": "full", "descent.decay": "coupled"}
#: Settings that may differ from a published recipe: the paper searches or compares them, or they
#: change no result.
_FREE = ("descent.", "noise.gamma_train", "training.log_every", "training.checkpoint_every")
#: Models that the paper has in several depths; it has pretrained ones as a whole.
OF_ANY_DEPTH = ("DUST", "UT")
#: What runs must share to be compared.
_CELL = ["family", "task_text", "n_layers", "gamma_train"]


def assign(frames: Frames) -> None:
    """Add the columns that say who is compared with whom."""
    runs = frames.runs
    rows = each(runs)
    runs["group"] = [*zip(*(runs[name] for name in GROUP), strict=True)]
    runs["is_constrained"] = [is_constrained(row.objective) for row in rows]
    runs["failing"] = [row.failing if is_constrained(row.objective) else {} for row in rows]
    runs["is_published"] = [_is_published(row) for row in rows]
    runs["constraints"] = [_constraint_kind(row) for row in rows]
    runs["task_text"] = [json.dumps(row.task) for row in rows]
    runs["model_text"] = [json.dumps(row.model, sort_keys=True) for row in rows]
    noises = frames.points.groupby("run")["perturbation"].unique().map(tuple)
    runs["noises"] = [noises.get(run, ()) for run in runs.index]
    for recipe, mine in runs.groupby("recipe"):
        names = names_apart([_origin(row) for row in each(mine)])
        runs.loc[mine.index, "family"] = [", ".join(filter(None, (recipe, one))) for one in names]
    for (_, objective), mine in runs.groupby(["recipe", "objective"]):
        names = names_apart([*mine["settings"]])
        runs.loc[mine.index, "label"] = [f"{short(objective)} {one}".strip() for one in names]
    runs["cell"] = runs.groupby(_CELL).ngroup()
    _mark(frames)


def _origin(row: Any) -> dict[str, Any]:
    """What sets families of a recipe apart."""
    return {
        **{"metric": row.metric, "model.pretrained": row.pretrained},
        **{"task.loss": row.task.get("loss") or "", "training.select": row.weights},
    }


def _constraint_kind(row: Any) -> str:
    """What is unlike the paper in the constraints: `ladder`, `proxy, decoupled`; else empty."""
    found = {key: row.settings.get(key, usual) for key, usual in _PAPER_KIND.items()}
    unlike = (str(found[key]) for key, usual in _PAPER_KIND.items() if found[key] != usual)
    return ", ".join(unlike) if is_constrained(row.objective) else ""


def _is_published(row: Any) -> bool:
    """Whether a run is one of the paper's experiments: its recipe says so, and its settings are
    those that come with cudt, except for those that are searched.
    """
    shipped = _shipped_settings(row.recipe)
    if row.published is None or shipped is None:
        return False
    erm = row.published.get("erm") or {}
    wanted = {**shipped, **(erm if row.objective == BASELINE else {})}
    free = (*_FREE, "model.layers") if row.published["model"] in OF_ANY_DEPTH else _FREE
    found = row.settings
    return all(found.get(key) == value for key, value in wanted.items() if not key.startswith(free))


@cache
def _shipped_settings(name: str) -> dict[str, Any] | None:
    """The settings of a recipe that comes with cudt; None for other recipes."""
    try:
        return flat_settings(recipes.load(name))
    except UserError:
        return None


def _mark(frames: Frames) -> None:
    """What sweeps say of runs.

    measure       what a sweep scored the run by; empty where two sweeps differ
    is_repeated   it is one of several seeds of settings that were not chosen
    is_ablation   it is left out of comparisons: it belongs to sweeps of one objective that repeat
                  nothing, or to a search that a later sweep repeats on seeds of its own
    """
    runs = frames.runs
    names = pd.Series([f"{path.parent.name}/{path.name}" for path in runs["path"]], runs.index)
    ablated, compared, searched, repeated = (set[int]() for _ in range(4))
    for sweep in frames.sweeps:
        mine = {*names.index[names.isin(sweep.runs)]}
        is_comparison = runs.loc[[*mine], "objective"].nunique() > 1
        (compared if is_comparison else ablated).update(mine)
        (searched if sweep.is_search else repeated).update(mine)
    ablated -= compared
    places = dict(zip(runs.index, zip(runs["cell"], runs["objective"], strict=True), strict=True))
    anew = {places[run] for run in repeated - ablated}
    replaced = {run for run in searched - repeated if places[run] in anew}
    measures = [{one.measure for one in frames.sweeps if name in one.runs} for name in names]
    runs["measure"] = [found.pop() if len(found) == 1 else "" for found in measures]
    runs["is_repeated"] = runs.index.isin(repeated)
    runs["is_ablation"] = runs.index.isin(ablated | replaced)


def without_ablations(runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out the runs of ablations where other runs of the same cell and objective exist: what
    varies a setting on purpose must not join the search that tables choose from.
    """
    alone = runs.groupby(["cell", "objective"])["is_ablation"].transform("all")
    return runs[~runs["is_ablation"].astype(bool) | alone.astype(bool)]


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


def short(objective: str) -> str:
    """The last part of an import path."""
    return objective.rpartition(".")[2]


@dataclass(frozen=True)
class Side:
    """The evaluated runs that represent one objective."""

    runs: list[int]
    best_of: int = 0
    """The number of runs the best was selected from; 0 if all runs count."""
    problem: str = ""
    """Why there is no run here although some were trained."""
    infeasible: str = ""
    """The runs that break a constraint: `seed 0: violated at layer 2`."""

    @property
    def how(self) -> str:
        """`best of 5`, or `3 seeds`."""
        n = len(self.runs)
        return f"best of {self.best_of}" if self.best_of else f"{n} seed{'s' if n > 1 else ''}"


def choices(runs: pd.DataFrame, noise: str) -> list[dict[str, Side]]:
    """The runs that represent each objective of each comparison under a kind of noise, and of each
    cell without one.
    """
    made = []
    for _, mine in without_ablations(runs).groupby("cell"):
        others = mine[~mine["objective"].isin(SIDES)]
        for match in matches(mine) or [[*mine.index]]:
            like = others[others["model_text"].isin(runs.loc[match, "model_text"])]
            rivals = (like if len(like) else others).index.difference(match)
            sides = choose(mine.loc[[*match, *rivals]], noise)
            made.append({name: side for name, side in sides.items() if side.runs})
    return [sides for sides in made if sides]


def matches(runs: pd.DataFrame) -> list[list[int]]:
    """The runs of each comparison of constrained with ERM among the runs of one cell.

    ERM is compared with the constrained runs of the same model settings (the paper's unconstrained
    DUST shares one dictionary between layers), or with all of the cell where there are none. Where
    a sweep repeats both on several seeds, their numbers of epochs must agree, too.
    """
    found = []
    epochs = runs["epochs"].where(runs["is_repeated"], 0)
    constrained, baseline = (runs[runs["objective"] == side] for side in SIDES)
    for (model, n_epochs), erm in baseline.groupby(["model_text", epochs], sort=False):
        like = constrained[constrained["model_text"] == model]
        as_long = like[epochs[like.index].isin([0, n_epochs])] if n_epochs else like
        rivals = next((part for part in (as_long, like) if len(part)), constrained)
        # Settings that a sweep repeats were not chosen among others, so each has its own row.
        methods = rivals["constraints"].where(~rivals["is_repeated"], rivals["variant"])
        for _, mine in rivals.groupby(methods, sort=False):
            found.append([*mine.index, *erm.index])
    return found


def choose(runs: pd.DataFrame, noise: str) -> dict[str, Side]:
    """The runs that represent each objective among comparable runs, in every table and figure.

    Constrained and ERM decide together, and by one criterion, whether the best or all runs count.
    """
    is_evaluated = pd.Series([noise in noises for noises in runs["noises"]], runs.index)
    parts = {name: runs[runs["objective"] == name] for name in runs["objective"].unique()}
    selected = {
        name: mine["group"].nunique() > 1 or is_evaluated[mine.index].nunique() > 1
        for name, mine in parts.items()
    }
    chosen = {}
    for name, mine in parts.items():
        rivals = SIDES if name in SIDES else (name,)
        best_of, found, problem = 0, mine, "not evaluated"
        if any(selected.get(one) for one in rivals):
            rank = criterion(runs[runs["objective"].isin(rivals)])
            # If the best was not evaluated, there is none: the second best was not selected.
            # As in a sweep, what meets its constraints comes first; of a tie, what was evaluated.
            order = {"fails": mine["failing"].map(bool), "rank": rank, "lacks": ~is_evaluated}
            best = pd.DataFrame(order).loc[mine.index].sort_values([*order]).index[:1]
            best_of, found = len(mine), mine.loc[best]
            problem = "the best by validation data is not evaluated"
        command = as_command("eval-ood", found["path"].iloc[0])
        found = found[is_evaluated[found.index]]
        failing = [(row.seed, failing_layers(row.failing)) for row in each(found) if row.failing]
        texts = "; ".join(f"seed {seed}: {layers}" for seed, layers in failing)
        problem = "" if len(found) else f"{problem}: {command}"
        chosen[name] = Side([*found.index], best_of, problem, texts)
    return chosen


def failing_layers(failing: Mapping[str, Any]) -> str:
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


def pairs(runs: pd.DataFrame) -> list[tuple[str, list[int], list[int]]]:
    """Noise, and the runs of two groups that paired.csv compares: each other objective with ERM,
    and the constrained ones also with every unconstrained one.
    """
    found = []
    for _, mine in runs.groupby("cell"):
        noises = mine["noises"].explode().dropna()
        groups = [part for _, part in mine.groupby("group", sort=False)]
        for ours, other, noise in itertools.product(groups, groups, sorted({*noises})):
            evaluated = noises.index[noises == noise]
            sides = [[*part.index.intersection(evaluated)] for part in (ours, other)]
            if all(sides) and _is_compared(ours["objective"].iloc[0], other["objective"].iloc[0]):
                found.append((noise, *sides))
    return found


def _is_compared(objective: str, other: str) -> bool:
    if other == BASELINE:
        return objective != BASELINE
    return is_constrained(objective) and not is_constrained(other)
