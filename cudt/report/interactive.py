"""The numbers behind the page's interactive charts, as plain values for its script (page.js)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cudt.config.differences import differing_keys, symbol, value_text
from cudt.noise.base import scale_of, training_level
from cudt.report.collect import ReadRun
from cudt.report.compare import failing_layers
from cudt.report.figures.style import short
from cudt.report.figures.words import labels, styles
from cudt.report.groups import Group
from cudt.utils.errors import UserError

#: Lines that a chart begins with; the rest is a click on the legend away.
_SHOWN = 8
#: Points of a line over training: more than a screen can show makes the page large.
_POINTS = 60
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_SYMBOLS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "x": "x"}


def section(groups: Sequence[Group]) -> dict[str, Any]:
    """Everything that the charts of one recipe need; its runs in `groups`, all of one metric."""
    kinds = list(dict.fromkeys(kind for group in groups for kind in group.kinds))
    return {
        "metric": groups[0].metric,
        "groups": _legend(groups, kinds),
        "kinds": {kind: _kind(groups, kind) for kind in kinds},
        "training": [_training(run, place) for place, group in enumerate(groups) for run in group.runs[:1]],
    }


def _legend(groups: Sequence[Group], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """What each group is called and looks like; of many, the best of each objective are shown at first."""
    named = labels(groups, kinds[0] if kinds else "", counts=False, written=short)
    drawn = styles(groups)
    ranked = sorted(groups, key=lambda group: group.validation_loss)
    apart = differing_keys([group.settings for group in groups])
    objectives = dict.fromkeys(group.objective for group in groups)
    # As many of each objective.
    share = max(1, _SHOWN // len(objectives))
    shown = {group.key for name in objectives for group in [one for one in ranked if one.objective == name][:share]}
    return [
        {
            "name": named[group.key],
            "objective": group.objective,
            "detail": _detail(group, apart),
            "seeds": f"{len(group.runs)} seed{'s' if len(group.runs) > 1 else ''}",
            "color": drawn[group.key]["color"],
            "dash": _DASHES.get(drawn[group.key].get("linestyle", "-"), "solid"),
            "symbol": _SYMBOLS.get(drawn[group.key].get("marker", "o"), "circle"),
            "gammaTrain": group.gamma_train,
            "reference": _number(group.reference),
            "shown": group.key in shown,
            "infeasible": sum(bool(failing_layers(run)) for run in group.runs),
        }
        for group in groups
    ]


def _detail(group: Group, keys: Sequence[str]) -> str:
    """What sets a group apart, however much that is."""
    return ", ".join(f"{symbol(key)}={value_text(group.settings.get(key))}" for key in keys)


def _kind(groups: Sequence[Group], kind: str) -> dict[str, Any]:
    """Curves, layer losses at every level, and ratios at every level, under one kind of noise."""
    levels = {training_level(kind, group.gamma_train) for group in groups if kind in group.kinds}
    grids: dict[tuple[float, ...], int] = {}
    gammas = sorted({float(gamma) for group in groups for gamma in _test_rows(group, kind)["gamma"]})
    return {
        "symbol": scale_of(kind).symbol,
        "seen": next(iter(levels)) if len(levels) == 1 else None,
        "curves": [_curve(group, kind) for group in groups],
        "gammas": gammas,
        "layers": [_by_level(_test_rows(group, kind), "loss", gammas) for group in groups],
        "ratios": [_ratios(group, kind, grids) for group in groups],
        "grids": [_numbers(grid) for grid in grids],
    }


def _curve(group: Group, kind: str) -> dict[str, Any] | None:
    rows = group.curve(kind)
    if rows.empty:
        return None
    return {
        "x": _numbers(rows["gamma"]),
        "y": _numbers(rows["mean"]),
        "low": _numbers(rows["lower"]),
        "high": _numbers(rows["upper"]),
        "seeds": group.seeds(kind),
    }


def _test_rows(group: Group, kind: str) -> pd.DataFrame:
    rows = group.layers
    return rows[(rows["split"] == "test") & (rows["perturbation"] == kind)]


def _by_level(rows: pd.DataFrame, column: str, gammas: Sequence[float]) -> list[list[float | None] | None]:
    """A value for each layer at each level; nothing at levels that a group was not measured at."""
    found = {gamma: mine.sort_values("layer")[column] for gamma, mine in rows.groupby("gamma")}
    return [_numbers(found[gamma]) if gamma in found else None for gamma in gammas]


def _ratios(group: Group, kind: str, grids: dict[tuple[float, ...], int]) -> list[dict[str, Any]]:
    """The density of f_l / f_{l−1} over examples at each level; the middles of its bins are filed in `grids`, once."""
    rows = group.bins[(group.bins["perturbation"] == kind) & (group.bins["right"] < math.inf)]
    made = []
    for gamma, bins in rows.groupby("gamma"):
        density = bins["share"] / (bins["right"] - bins["left"])
        grid = grids.setdefault(tuple((bins["right"] + bins["left"]) / 2), len(grids))
        # Most of the page's numbers are these: three digits, and 0 as short as it is.
        shown = [_number(one, 3) if one else 0 for one in density]
        made.append({"gamma": float(str(gamma)), "grid": grid, "y": shown})
    return made


def _training(run: ReadRun, place: int) -> dict[str, Any]:
    """λ and the validation losses over the updates of a group's first run."""
    told: dict[str, Any] = {"group": place, "run": run.run.path.name, "seed": run.seed}
    try:
        history = run.run.read_table("history")
    except (UserError, ValueError) as error:
        return {**told, "problem": str(error)}
    told["multipliers"] = _lines(history[history["name"] == "multiplier"])
    told["losses"] = _lines(history[(history["name"] == "loss") & (history["split"] == "validation")])
    return told


def _lines(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """A line for each layer over the updates, thinned."""
    return [
        {
            "layer": int(str(layer)),
            "x": [int(step) for step in _thinned(mine["step"])],
            "y": _numbers(_thinned(mine["value"])),
        }
        for layer, mine in rows.groupby("layer")
    ]


def _thinned(column: pd.Series[Any]) -> pd.Series[Any]:
    """So many points at most, the first and the last among them."""
    if len(column) <= _POINTS:
        return column
    return column.iloc[np.unique(np.linspace(0, len(column) - 1, _POINTS).round().astype(int))]


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: float, digits: int = 5) -> float | None:
    """Five digits: no eye sees more, and the page has many numbers; what is not finite is a gap."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
