"""Read the folders of sweeps for a report, and draw the searched settings against the scores."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import ticker

from cudt.report import objectives
from cudt.report.collect import ReadRun
from cudt.report.comparable import cell_of
from cudt.report.figures import Drawing, Figure, Job, save
from cudt.runs import checksums
from cudt.sweep.info import SweepInfo, read_info
from cudt.utils.errors import UserError
from cudt.utils.files import file_name, files_below

#: The columns of best.csv on what an arm spent, with their headings; PRUNED only of sweeps that end
#: runs early.
SPENT = {"runs": "runs", "failed": "failed", "spent_updates": "updates", "spent_seconds": "seconds"}
PRUNED = {"pruned": "pruned"}

#: Values that differ by more than this factor are drawn on a logarithmic axis.
_MANY_TIMES = 20


@dataclass(frozen=True)
class ReadSweep:
    """A sweep with its tables in memory."""

    path: Path
    info: SweepInfo
    trials: pd.DataFrame
    best: pd.DataFrame

    @property
    def title(self) -> str:
        return f"{self.info.recipe}, {self.info.name}"

    @property
    def section(self) -> str:
        """The key of its figures; two sweeps may share a title."""
        return f"sweep {self.path.resolve()}"

    @property
    def finished(self) -> pd.DataFrame:
        return self.trials[self.trials["state"] == "finished"]

    @property
    def keys(self) -> list[str]:
        """The settings that differ between finished trials."""
        return [key for key in self.info.keys if self.finished[key].nunique() > 1]

    @property
    def is_search(self) -> bool:
        """Whether settings were chosen among; else its runs differ in their seed and in what is
        compared.
        """
        return bool(set(self.keys) - {"seed", *self.info.settings})

    @property
    def score_name(self) -> str:
        what = {"grid": "mean metric over γ", "metric": "metric", "loss": "loss"}[self.info.measure]
        return f"validation {what}"


def collect(folders: Sequence[Path]) -> tuple[list[ReadSweep], list[str]]:
    """Read every sweep with a finished trial below some folders; and a warning for each without one
    or damaged.
    """
    found: dict[Path, ReadSweep] = {}
    warnings = []
    for path in sorted(file for folder in folders for file in files_below(folder, ["sweep.json"])):
        try:
            sweep = _read(path.parent)
        except UserError as error:
            warnings.append(str(error))
            continue
        except (OSError, ValueError, KeyError, TypeError, pd.errors.ParserError) as error:
            warnings.append(f"{path.parent}: damaged ({type(error).__name__}: {error})")
            continue
        if sweep.finished.empty:
            warnings.append(f"{path.parent}: skipped: the sweep has no finished run yet")
        else:
            found.setdefault(path.parent.resolve(), sweep)
    return list(found.values()), warnings


def _read(folder: Path) -> ReadSweep:
    info = read_info(folder)
    words = dict.fromkeys(["setting", "arm", "run", "reason", *info.keys], str)
    trials, best = (
        checksums.read_as(folder, name, partial(_table, words))
        for name in ("trials_wide.csv", "best.csv")
    )
    for key in info.keys:
        if pd.to_numeric(trials[key], errors="coerce").notna().equals(trials[key].notna()):
            trials[key], best[key] = pd.to_numeric(trials[key]), pd.to_numeric(best[key])
    sweep = ReadSweep(folder, info, trials.fillna({"setting": ""}), best.fillna({"setting": ""}))
    # Access the columns that the report needs now, so that a missing one is reported with the
    # folder.
    _ = sweep.keys, sweep.finished["score"]
    _ = sweep.trials[["reason", "trial"]], sweep.best[["score", "feasible", "run", *SPENT]]
    return sweep


def _table(words: dict[str, type[str]], content: bytes) -> pd.DataFrame:
    # A setting may be the word `null`.
    return pd.read_csv(io.BytesIO(content), dtype=words, keep_default_na=False, na_values=[""])


def ablations(sweeps: Sequence[ReadSweep], runs: Sequence[ReadRun]) -> set[str]:
    """The names of the runs of sweeps over a single objective, unless a sweep over several
    objectives has them too.

    And those of searches, where a sweep repeats the same comparison on seeds of its own: then
    nothing that was chosen among is shown in place of it.
    """
    by_name = {run.name: run for run in runs}
    ablated: set[str] = set()
    compared: set[str] = set()
    searched: set[str] = set()
    repeated: set[str] = set()
    for sweep in sweeps:
        names = {name for name in sweep.finished["run"].dropna() if name in by_name}
        (compared if len({by_name[name].objective for name in names}) > 1 else ablated).update(
            names
        )
        (searched if sweep.is_search else repeated).update(names)
    repeated -= ablated - compared
    anew = {(cell_of(by_name[name]), by_name[name].objective) for name in repeated}
    replaced = {
        name
        for name in searched - repeated
        if (cell_of(by_name[name]), by_name[name].objective) in anew
    }
    return (ablated - compared) | replaced


def with_measures(runs: Sequence[ReadRun], sweeps: Sequence[ReadSweep]) -> list[ReadRun]:
    """The runs, each with what a sweep scored it by, and whether it repeats settings on several
    seeds.
    """
    measures = {
        str(name): sweep.info.measure for sweep in sweeps for name in sweep.finished["run"].dropna()
    }
    repeated = {
        str(name)
        for sweep in sweeps
        if not sweep.is_search
        for name in sweep.finished["run"].dropna()
    }
    return [
        replace(run, measure=measures.get(run.name, ""), is_repeated=run.name in repeated)
        for run in runs
    ]


# ---------------------------------------------------------------- figures


def plan(sweeps: Sequence[ReadSweep], out: Path) -> list[Job]:
    """Both figures of each sweep that searched a setting, to be drawn."""
    return [
        partial(draw, sweep, out)
        for sweep in sweeps
        if sweep.keys
        for draw in (slices, parallel_coordinates)
    ]


def slices(sweep: ReadSweep, out: Path) -> Figure:
    """The score against each searched setting, whatever the others are; the best of each arm has a
    ring.
    """
    keys = sweep.keys
    columns = min(3, len(keys))
    rows = math.ceil(len(keys) / columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(1 + 3.4 * columns, 0.4 + 2.8 * rows),
        constrained_layout=True,
        squeeze=False,
        sharey=True,
    )
    for axes, key in zip(grid.flat, keys, strict=False):
        _slice(axes, sweep, key)
    for axes in grid.flat[len(keys) :]:
        axes.set_axis_off()
    for row in grid:
        row[0].set_ylabel(sweep.score_name)
    legend = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        legend.values(),
        legend.keys(),
        frameon=False,
        fontsize=9,
        loc="outside upper right",
        ncols=len(legend),
    )
    drawing = Drawing(figure, f"{sweep.title}: each setting against the score")
    return save(drawing, sweep.section, _stem(sweep, out, "slices"))


def _slice(axes: Any, sweep: ReadSweep, key: str) -> None:
    axis = _Axis(sweep, key)
    for arm, rows in sweep.finished[sweep.finished[key].notna()].groupby("arm", sort=False):
        colour, marker = _style(sweep, str(arm))
        axes.scatter(
            axis.positions(rows[key]),
            rows["score"],
            s=22,
            color=colour,
            marker=marker,
            alpha=0.6,
            label=arm,
        )
        best = sweep.best[(sweep.best["arm"] == arm) & sweep.best[key].notna()]
        positions = axis.positions(best[key])
        axes.scatter(
            positions, best["score"], s=90, facecolors="none", edgecolors=colour, linewidths=1.4
        )
    axes.set(xlabel=key)
    if axis.is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    elif axis.words:
        axes.set_xticks(range(len(axis.words)), axis.words)
    elif all(value == int(value) for value in axis.values):
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))


def parallel_coordinates(sweep: ReadSweep, out: Path) -> Figure:
    """A line for each trial through its searched settings to its score, darker if better; a panel
    for each arm.
    """
    arms = [arm for arm in sweep.info.arms if (sweep.finished["arm"] == arm).any()]
    # An arm that varies only seeds has no settings to show.
    shown = [arm for arm in arms if len(_searched(sweep, arm)) > 1] or arms[:1]
    widest = max(len(_searched(sweep, arm)) for arm in shown)
    figure, panels = plt.subplots(
        len(shown),
        1,
        figsize=(3.5 + 1.7 * widest, 0.5 + 2.9 * len(shown)),
        constrained_layout=True,
        squeeze=False,
    )
    for axes, arm in zip(panels[:, 0], shown, strict=True):
        _coordinates(axes, sweep, arm)
    title = f"{sweep.title}: settings and score ({sweep.score_name}, dark is good) of each trial"
    return save(
        Drawing(figure, title), sweep.section, _stem(sweep, out, "parallel-coordinates"), grid=False
    )


def _searched(sweep: ReadSweep, arm: str) -> list[str]:
    rows = sweep.finished[sweep.finished["arm"] == arm]
    return [key for key in sweep.keys if rows[key].nunique() > 1]


def _coordinates(axes: Any, sweep: ReadSweep, arm: str) -> None:
    rows = sweep.finished[sweep.finished["arm"] == arm]
    coordinates = [_Axis(sweep, key) for key in (*_searched(sweep, arm), "score")]
    heights = np.stack([axis.heights(rows[axis.key]) for axis in coordinates], axis=1)
    is_better_up = sweep.info.direction == "maximize"
    goodness = heights[:, -1] if is_better_up else 1 - heights[:, -1]
    for index in np.argsort(goodness):
        colour = plt.get_cmap("viridis_r")(goodness[index])
        axes.plot(range(len(coordinates)), heights[index], color=colour, linewidth=1.4, alpha=0.8)
    for position, axis in enumerate(coordinates):
        axes.axvline(position, color="0.6", linewidth=0.8)
        for height, word in axis.ticks():
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
            axes.text(position + 0.02, height, word, fontsize=7, va="center", bbox=box, zorder=3)
    axes.set_xticks(range(len(coordinates)), [axis.key for axis in coordinates], fontsize=8)
    axes.set(yticks=[], xlim=(-0.1, len(coordinates) - 0.6), title=arm)
    axes.spines["left"].set_visible(False)


class _Axis:
    """The axis of one setting: linear, logarithmic, or one tick for each word."""

    def __init__(self, sweep: ReadSweep, key: str) -> None:
        self.key = key
        values = sweep.finished[key].dropna()
        is_number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        self.words = [] if is_number else sorted({str(value) for value in values})
        self.values = sorted(set(values)) if is_number else []
        spread = is_number and self.values[0] > 0 and self.values[-1] > _MANY_TIMES * self.values[0]
        self.is_log = bool(is_number and key != "score" and (key in sweep.info.log_keys or spread))

    def positions(self, column: Any) -> np.ndarray[Any, Any]:
        if self.words:
            return np.array([self.words.index(str(value)) for value in column], float)
        return np.asarray(column, float)

    def heights(self, column: Any) -> np.ndarray[Any, Any]:
        """Between 0 and 1."""
        low, high = self._scaled(
            np.array([0, len(self.words) - 1] if self.words else self.values, float)
        )[[0, -1]]
        positions = self._scaled(self.positions(column))
        return (positions - low) / (high - low) if high > low else np.full(len(positions), 0.5)

    def _scaled(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.log10(positions) if self.is_log else positions

    def ticks(self) -> list[tuple[float, str]]:
        """The positions and texts of a few values."""
        if self.words:
            return [
                (float(height), word)
                for height, word in zip(self.heights(self.words), self.words, strict=True)
            ]
        few = self.values if len(self.values) <= 7 else [self.values[0], self.values[-1]]
        return [
            (float(height), f"{value:.4g}")
            for height, value in zip(self.heights(few), few, strict=True)
        ]


def _style(sweep: ReadSweep, arm: str) -> tuple[str, str]:
    if objectives.is_installed(arm):
        style = objectives.style(arm)
        return style["color"], style["marker"]
    others = [name for name in sweep.info.arms if not objectives.is_installed(name)]
    return objectives.SPARE_COLORS[others.index(arm) % len(objectives.SPARE_COLORS)], "D"


def _stem(sweep: ReadSweep, out: Path, kind: str) -> Path:
    return out / f"sweep-{file_name(sweep.info.recipe)}-{file_name(sweep.path.name)}-{kind}"
