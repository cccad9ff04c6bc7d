"""The data of the page's interactive charts, as plain values that its script (page.js) reads as
JSON.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colors

from cudt.config.differences import differing_keys, symbol, value_text
from cudt.noise import scale_of, training_level
from cudt.report import objectives
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.compare import failing_layers, group_scores
from cudt.report.figures.words import labels, seeds_text, short, styles
from cudt.report.groups import Group

#: Lines that a chart shows at first; a click on the legend shows the others.
_SHOWN = 8
#: Points of a line over training, at most: more make the page larger, but not the chart better.
_POINTS = 60
#: Plotly's names for Matplotlib's line styles and markers.
_DASHES = {
    **{"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"},
    **{"dashed": "dash", "dotted": "dot", "dashdot": "dashdot"},
}
_SYMBOLS = {
    **{
        "o": "circle",
        "s": "square",
        "^": "triangle-up",
        "D": "diamond",
        "v": "triangle-down",
        "x": "x",
    },
    **{"X": "x", "p": "pentagon", "*": "star", "P": "cross"},
}


def section(groups: Sequence[Group], compared: Collection[GroupKey]) -> dict[str, Any]:
    """Everything that the charts of one recipe need, given its groups, which share one metric.

    Groups that the tables do not compare, those of ablations, are hidden at first.
    """
    kinds = list(dict.fromkeys(kind for group in groups for kind in group.kinds))
    return {
        "metric": groups[0].metric,
        "groups": _legend(
            groups, kinds, _shown_at_first([group for group in groups if group.key in compared])
        ),
        "kinds": {kind: _kind(groups, kind) for kind in kinds},
        "training": [
            _training(run, index) for index, group in enumerate(groups) for run in group.runs[:1]
        ],
    }


def _legend(
    groups: Sequence[Group], kinds: Sequence[str], shown: Collection[GroupKey]
) -> list[dict[str, Any]]:
    """The name and the style of each group, and whether it is shown at first."""
    named = labels(groups, kinds[0] if kinds else "", counts=False, written=short)
    drawn = styles(groups)
    return [
        {
            "name": named[group.key],
            "isConstrained": objectives.is_constrained(group.objective),
            "detail": _detail(group, groups),
            "seeds": seeds_text(len(group.runs)),
            **_look(drawn[group.key]),
            "gammaTrain": group.gamma_train,
            "reference": _number(group.reference),
            "shown": group.key in shown,
            "infeasible": sum(bool(failing_layers(run)) for run in group.runs),
        }
        for group in groups
    ]


def _shown_at_first(groups: Sequence[Group]) -> set[GroupKey]:
    """The groups that are best on validation data, equally many of each objective."""
    scores = group_scores([run for group in groups for run in group.runs])
    ranked = sorted(groups, key=lambda group: scores[group.key])
    names = dict.fromkeys(group.objective for group in groups)
    share = max(1, _SHOWN // len(names))
    return {
        group.key
        for name in names
        for group in [one for one in ranked if one.objective == name][:share]
    }


def _look(style: dict[str, Any]) -> dict[str, str]:
    """A Matplotlib style in Plotly's words; of a colour, page.js needs the six digits."""
    return {
        "color": colors.to_hex(style["color"]),
        "dash": _DASHES.get(str(style["linestyle"]), "solid"),
        "symbol": _SYMBOLS.get(str(style["marker"]), "circle"),
    }


def _detail(group: Group, groups: Sequence[Group]) -> str:
    """All settings in which a group differs from the others of its objective, for its tooltip."""
    keys = differing_keys(
        [other.settings for other in groups if other.objective == group.objective]
    )
    return ", ".join(f"{symbol(key)}={value_text(group.settings.get(key))}" for key in keys)


def _kind(groups: Sequence[Group], kind: str) -> dict[str, Any]:
    """Curves, and layer losses and ratios at every level, under one kind of noise."""
    levels = {training_level(kind, group.gamma_train) for group in groups if kind in group.kinds}
    grids: dict[tuple[float, ...], int] = {}
    gammas = sorted(
        {float(gamma) for group in groups for gamma in _test_rows(group, kind)["gamma"]}
    )
    return {
        "symbol": scale_of(kind).symbol,
        "seen": next(iter(levels)) if len(levels) == 1 else None,
        "curves": [_curve(group, kind) for group in groups],
        "input": next((noisy for group in groups if (noisy := _input(group, kind))), None),
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


def _input(group: Group, kind: str) -> dict[str, Any] | None:
    """The metric of the noisy input itself."""
    rows = group.input_curve(kind)
    return None if rows is None else {"x": _numbers(rows["gamma"]), "y": _numbers(rows["input"])}


def _test_rows(group: Group, kind: str) -> pd.DataFrame:
    rows = group.layers
    return rows[(rows["split"] == "test") & (rows["perturbation"] == kind)]


def _by_level(
    rows: pd.DataFrame, column: str, gammas: Sequence[float]
) -> list[list[float | None] | None]:
    """The values of all layers at each level; None at levels that a group was not evaluated at."""
    found = {gamma: mine.sort_values("layer")[column] for gamma, mine in rows.groupby("gamma")}
    return [_numbers(found[gamma]) if gamma in found else None for gamma in gammas]


def _ratios(group: Group, kind: str, grids: dict[tuple[float, ...], int]) -> list[dict[str, Any]]:
    """The density of f_l / f_{l−1} over examples at each level.

    The centres of the bins go to `grids`, which maps them to their number, so that the page has
    each grid once.
    """
    rows = group.bins[(group.bins["perturbation"] == kind) & (group.bins["right"] < math.inf)]
    made = []
    for gamma, bins in rows.groupby("gamma"):
        density = bins["share"] / (bins["right"] - bins["left"])
        grid = grids.setdefault(tuple((bins["right"] + bins["left"]) / 2), len(grids))
        # Most numbers of the page are these, so they have three digits, and zeros have one.
        shown = [_number(one, 3) if one else 0 for one in density]
        made.append({"gamma": float(str(gamma)), "grid": grid, "y": shown})
    return made


def _training(run: ReadRun, index: int) -> dict[str, Any]:
    """The multipliers λ and the validation losses over the updates of a run, the first of the group
    at `index`.
    """
    shown: dict[str, Any] = {"group": index, "run": run.run.path.name, "seed": run.seed}
    history = run.run.read_table("history")
    shown["multipliers"] = _lines(history[history["name"] == "multiplier"])
    shown["losses"] = _lines(
        history[(history["name"] == "loss") & (history["split"] == "validation")]
    )
    return shown


def _lines(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """A line for each layer over the updates, with few enough points."""
    return [
        {
            "layer": int(str(layer)),
            "x": [int(step) for step in _thinned(mine["step"])],
            "y": _numbers(_thinned(mine["value"])),
        }
        for layer, mine in rows.groupby("layer")
    ]


def _thinned(column: pd.Series[Any]) -> pd.Series[Any]:
    """At most `_POINTS` evenly spaced values, the first and the last among them."""
    if len(column) <= _POINTS:
        return column
    return column.iloc[np.unique(np.linspace(0, len(column) - 1, _POINTS).round().astype(int))]


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: float, digits: int = 5) -> float | None:
    """The value with five digits, more than a chart can show; None, which leaves a gap, where it is
    not finite.
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
