"""What constraints gain over ERM against the depth of the model, for all models on one data set.

Drawn over all recipes, a column for each task and γ_train with models of at least two depths, the paper's included:
above the gain in the mean OOD metric, below that in the quantity of the paper's tables, next to the paper's own.
../gains.py says which runs are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

#: Columns that are legible next to each other.
_MOST_COLUMNS = 2
#: On the axis, where a depth has a width of at least 1: between two points, between many, and beside all of them.
_APART, _CLOSE, _MARGIN = 0.25, 0.14, 0.5
_PAPER = {"color": "0.6", "marker": "o", "markerfacecolor": "white"}
#: Of a model's name: the characters that are shown, and the height of one, as a share of a panel's height.
_LONGEST, _CHARACTER = 14, 0.027
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
        for row, name in enumerate(("ood_mean", quantity)):
            mine = [gain for gain in each if gain.quantity == name]
            slots = _slots(mine, beside)
            _draw_gains(grid[row, column], mine, beside if row else [], slots, looks)
            _name_models(grid[row, column], mine, beside if row else [], slots, names)
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


@dataclass(frozen=True)
class _Slot:
    """The part of the axis that belongs to one depth; a depth with many points is wider."""

    start: float
    width: float
    n_points: int

    @property
    def centre(self) -> float:
        return self.start + self.width / 2

    @property
    def paper(self) -> float:
        """Where the paper's point is, to the left of ours."""
        return self.start + 0.3 * _MARGIN

    def position(self, index: int) -> float:
        """Where our point with this index is."""
        apart = min(_APART, (self.width - _MARGIN) / self.n_points)
        return self.centre + apart * (index - (self.n_points - 1) / 2)


def _slots(found: Sequence[Gain], printed: Sequence[PaperGain]) -> dict[int, _Slot]:
    """The slots of all depths; distances do not grow with depth, since most depths are small."""
    counts = Counter(gain.run.n_layers for gain in found)
    slots, start = {}, 0.0
    for depth in sorted({*counts, *(one.layers for one in printed)}):
        width = max(1.0, _CLOSE * counts[depth] + _MARGIN)
        slots[depth] = _Slot(start, width, counts[depth])
        start += width
    return slots


def _draw_gains(
    axes: Any,
    found: Sequence[Gain],
    printed: Sequence[PaperGain],
    slots: Mapping[int, _Slot],
    looks: Mapping[Any, tuple[str, dict[str, Any]]],
) -> None:
    """Our gains, points of one depth next to each other, and to their left the paper's in grey."""
    guide(axes, y=0)
    indices: Counter[int] = Counter()
    at = {}
    for gain in found:
        depth = gain.run.n_layers
        at[id(gain)] = slots[depth].position(indices[depth])
        indices[depth] += 1
    for kind, (label, style) in looks.items():
        mine = [gain for gain in found if objective_kind(gain.run) == kind]
        if mine:
            ends = [(gain.value, gain.low, gain.high) for gain in mine]
            look = {"color": style["color"], "marker": style["marker"]}
            _draw_points(axes, [at[id(gain)] for gain in mine], ends, label, look)
    if printed:
        ends = [(one.mean, one.low, one.high) for one in printed]
        _draw_points(axes, [slots[one.layers].paper for one in printed], ends, "the paper's constrained", _PAPER)
    axes.set_xticks([slot.centre for slot in slots.values()], [str(depth) for depth in slots])
    axes.set_xlim(0, max(slot.start + slot.width for slot in slots.values()))


def _draw_points(axes: Any, x: Sequence[float], ends: Sequence[Sequence[float]], label: str, look: Any) -> None:
    value, low, high = np.array(ends).T
    reach = [value - low, high - value]
    axes.errorbar(x, value, yerr=reach, label=label, markersize=5, linestyle="none", capsize=2, elinewidth=1.2, **look)


def _name_models(
    axes: Any, found: Sequence[Gain], printed: Sequence[PaperGain], slots: Mapping[int, _Slot], names: Mapping[Any, str]
) -> None:
    """The models of each depth above its points: ours, and to their left the paper's in grey."""
    ours: dict[int, dict[str, None]] = {}
    for gain in found:
        ours.setdefault(gain.run.n_layers, {})[_shortened(names[gain.run.group])] = None
    longest = max(map(len, [*(name for models in ours.values() for name in models), *(one.model for one in printed)]))
    low, high = axes.get_ylim()
    # The names take this share of the panel, above all points.
    share = _CHARACTER * longest
    axes.set_ylim(low, high + share / (1 - share) * (high - low))
    look = {"transform": axes.get_xaxis_transform(), "va": "top", "fontsize": 7, "rotation": 90}
    for depth, models in ours.items():
        axes.text(slots[depth].centre, 0.99, "\n".join(map(plain, models)), color="0.2", ha="center", **look)
    for one in printed:
        axes.text(slots[one.layers].paper, 0.99, plain(one.model), color="0.55", ha="center", **look)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


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
