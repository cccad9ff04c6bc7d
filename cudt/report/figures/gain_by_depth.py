"""What constraints gain over ERM against the depth of the model, for all models on one data set.

Drawn over all recipes, a column for each task and γ_train with models of at least two depths, the paper's included:
above the gain in the mean OOD metric, below that in the quantity of the paper's tables, next to the paper's own.
../gains.py says which runs are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from cudt.report.comparable import Pair
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.grid import model_name
from cudt.report.figures.panels import guide, legend_below, panels
from cudt.report.figures.words import kind_looks, objective_kind, plain
from cudt.report.gains import Gain, GainSetting, compared, gains
from cudt.report.groups import Group
from cudt.report.published import NOISE, PAPER_TABLES, PaperGain, PaperTable, paper_gains

#: Columns that fit next to each other, and how wide the points of one depth are spread, of 1 between two depths.
_MOST_COLUMNS, _SPREAD = 4, 0.5
_PAPER = {"color": "0.6", "marker": "o", "markerfacecolor": "white"}
#: What a quantity of paired.csv is called on the axis.
_CALLED = {"ood_mean": "mean OOD {}", "auc": "area under {}", "mean": "mean {}"}


class GainByDepth(FigureType):
    """Over the recipes of each task."""

    name = "gain-by-depth"
    order = 107

    def over_recipes(self, recipes: Sequence[Sequence[Group]]) -> Iterator[FigurePlan]:
        """One for each metric; several where the columns do not fit next to each other."""
        groups = [group for mine in recipes for group in mine]
        found = compared([run for group in groups for run in group.runs])
        names = {group.key: model_name(group) for group in groups}
        for metric in dict.fromkeys(setting.metric for setting in found):
            shown = {setting: mine for setting, mine in found.items() if setting.metric == metric}
            shown = {setting: mine for setting, mine in shown.items() if _has_depths(setting, mine)}
            settings = list(shown)
            pages = [settings[start : start + _MOST_COLUMNS] for start in range(0, len(settings), _MOST_COLUMNS)]
            for number, page in enumerate(pages, 1):
                name = f"{self.name}-{metric.replace('_', '-')}" + (f"-{number}" if len(pages) > 1 else "")
                yield FigurePlan(name, partial(draw, {setting: shown[setting] for setting in page}, names))


def _has_depths(setting: GainSetting, found: Sequence[Pair]) -> bool:
    printed = [one.layers for one in _published(setting)[1]]
    return len({*(pair.ours[0].n_layers for pair in found), *printed}) > 1


def _published(setting: GainSetting) -> tuple[PaperTable | None, list[PaperGain]]:
    """The paper's table of this metric, and its gains on this data set."""
    table = next((one for one in PAPER_TABLES if one.metric == setting.metric), None)
    return table, paper_gains(table, setting.task) if table and setting.noise == NOISE else []


def draw(shown: Mapping[GainSetting, Sequence[Pair]], names: Mapping[Any, str]) -> Drawing:
    """A column for each task and γ_train; `names` are those of the models, by group."""
    figure, grid = panels(2, len(shown), 4.2, 2.7)
    looks = kind_looks(pair.ours[0] for found in shown.values() for pair in found)
    ranges: list[str] = []
    counts: list[int] = []
    for column, (setting, found) in enumerate(shown.items()):
        table, printed = _published(setting)
        quantity = table.quantity if table else "auc"
        each = [gain for pair in found for gain in gains(pair, ("ood_mean", quantity))]
        beside = printed if table and all(_has_range(gain, table) for gain in each) else []
        depths = sorted({gain.run.n_layers for gain in each} | {one.layers for one in beside})
        for row, name in enumerate(("ood_mean", quantity)):
            mine = [gain for gain in each if gain.quantity == name]
            _draw_gains(grid[row, column], mine, beside if row else [], depths, looks)
            _name_models(grid[row, column], mine, beside if row else [], depths, names)
            grid[row, column].set_ylabel(f"gain in {_CALLED[name].format(setting.metric.replace('_', ' '))}")
        noise = "" if setting.noise == NOISE else f", {setting.noise} noise"
        grid[0, column].set_title(f"{plain(setting.task)}, γ_train = {setting.gamma_train:g}{noise}", fontsize=10)
        grid[1, column].set_xlabel("layers $L$")
        ranges += [f"{gain.levels[0]:g} to {gain.levels[-1]:g}" for gain in each]
        counts += [gain.seeds for gain in each]
    legend_below(figure)
    return Drawing(figure, _caption(ranges, counts, [*shown]))


def _has_range(gain: Gain, table: PaperTable) -> bool:
    """Whether a gain is over the paper's range of levels: an area under another range is another quantity."""
    return np.allclose([gain.levels[0], gain.levels[-1]], [table.levels[0], table.levels[-1]])


def _draw_gains(
    axes: Any,
    found: Sequence[Gain],
    printed: Sequence[PaperGain],
    depths: Sequence[int],
    looks: Mapping[Any, tuple[str, dict[str, Any]]],
) -> None:
    """Our gains, points of one depth next to each other, and to their left the paper's in grey."""
    guide(axes, y=0)
    for kind, (label, style) in looks.items():
        mine = [gain for gain in found if objective_kind(gain.run) == kind]
        if mine:
            ends = [(gain.value, gain.low, gain.high) for gain in mine]
            look = {"color": style["color"], "marker": style["marker"]}
            _draw_points(axes, [_position(gain, found, depths) for gain in mine], ends, label, look)
    if printed:
        ends = [(one.mean, one.low, one.high) for one in printed]
        at = [depths.index(one.layers) - 0.7 * _SPREAD for one in printed]
        _draw_points(axes, at, ends, "the paper's constrained", _PAPER)
    axes.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    axes.set_xlim(-0.6, len(depths) - 0.4)


def _draw_points(axes: Any, x: Sequence[float], ends: Sequence[Sequence[float]], label: str, look: Any) -> None:
    value, low, high = np.array(ends).T
    reach = [value - low, high - value]
    axes.errorbar(x, value, yerr=reach, label=label, markersize=5, linestyle="none", capsize=2, elinewidth=1.2, **look)


def _position(gain: Gain, found: Sequence[Gain], depths: Sequence[int]) -> float:
    """Depths have equal distances, since most are small; points of one depth are next to each other."""
    alike = [one for one in found if one.run.n_layers == gain.run.n_layers]
    index = next(index for index, one in enumerate(alike) if one is gain)
    return depths.index(gain.run.n_layers) + _SPREAD * ((index + 0.5) / len(alike) - 0.5)


def _name_models(
    axes: Any, found: Sequence[Gain], printed: Sequence[PaperGain], depths: Sequence[int], names: Mapping[Any, str]
) -> None:
    """The models of each depth above its points: ours, and to their left the paper's in grey."""
    ours: dict[int, dict[str, None]] = {}
    for gain in found:
        ours.setdefault(gain.run.n_layers, {})[plain(names[gain.run.group])] = None
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.35 * (high - low))
    look = {"transform": axes.get_xaxis_transform(), "va": "top", "fontsize": 7, "rotation": 90}
    for depth, models in ours.items():
        axes.text(depths.index(depth), 0.99, "\n".join(models), color="0.2", ha="center", **look)
    for one in printed:
        at = depths.index(one.layers) - 0.7 * _SPREAD
        axes.text(at, 0.99, plain(one.model), color="0.55", ha="center", **look)


def _caption(ranges: Sequence[str], counts: Sequence[int], settings: Sequence[GainSetting]) -> str:
    over = ", ".join(dict.fromkeys(ranges))
    seeds = f"{min(counts)} to {max(counts)}" if counts and min(counts) < max(counts) else f"{max(counts, default=0)}"
    note = ""
    if any(_published(setting)[1] for setting in settings):
        note = (
            "; grey: the paper's constrained models, the mean and the range over its γ_train, "
            "drawn where our levels have the paper's range"
        )
    return (
        f"What each objective gains over ERM, against the depth of the model: above 0 it is better than ERM. Noise "
        f"levels from {over}; bars are 95 % intervals over {seeds} paired seeds, as in paired.csv{note}"
    )


FIGURE = GainByDepth()
