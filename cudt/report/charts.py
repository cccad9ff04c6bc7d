"""What figures share: which runs they show, their lines with bands, and panels of them in Altair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from cudt.config.levels import GAMMA, scale_of, training_level
from cudt.report.compare import (
    BASELINE,
    CONSTRAINED,
    SIDES,
    Cell,
    Side,
    by_cell,
    choose,
    criterion,
    in_order,
    is_constrained,
    matches,
    objective_labels,
    variants_in_order,
)
from cudt.report.frames import Frames

#: Colour of Okabe and Ito's palette, dash and marker of each objective that comes with cudt.
_STYLES = {
    CONSTRAINED: ("#0072B2", [1, 0], "circle"),
    BASELINE: ("#D55E00", [6, 3], "square"),
    "supervised": ("#009E73", [2, 2], "triangle-up"),
}
#: For all other objectives, in the order of their names.
_SPARE = [
    ("#CC79A7", [8, 3, 2, 3], "diamond"),
    ("#E69F00", [8, 3, 2, 3], "triangle-down"),
    ("#56B4E9", [8, 3, 2, 3], "cross"),
    ("#808080", [8, 3, 2, 3], "stroke"),
]
#: From light to dark, for values that have an order; a print in grey keeps it.
_SHADES = np.array([[230, 200, 60], [140, 140, 110], [50, 90, 150]])
_MARKERS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross"]
#: γ_train of the paper's Figure 1, its main results on video and Llama, by metric.
PAPER_LEVELS = {"accuracy": 0.2, "RMSE": 0.13, "token accuracy": 0.25}
#: More bands than these overlap to one grey patch.
_MOST_BANDS = 3
#: More lines than these are named by the first and the last; longer labels are below each other.
_MOST_NAMED, _LONG = 12, 40
#: Numbers from here on are written as 10k and 2M.
_LARGE = 10_000
GREY = "#888888"


@dataclass(frozen=True)
class View:
    """What a figure is drawn from: the runs of one family, or of all."""

    frames: Frames
    name: str = ""
    """The family; empty for all."""
    kind: str = ""
    """The kind of noise; for all families, each has its own."""

    @property
    def runs(self) -> Any:
        """The runs, one row each."""
        return self.frames.runs

    @property
    def metric(self) -> str:
        """The metric of a family."""
        return str(self.runs["metric"].iloc[0]).replace("_", " ")

    @property
    def symbol(self) -> str:
        """γ, or p for noise in texts."""
        return scale_of(self.kind).symbol

    def of(self, runs: Iterable[int]) -> View:
        """The same with some of the runs."""
        return replace(self, frames=self.frames.of(runs))

    def families(self) -> list[View]:
        """A view of each family, under its main kind of noise."""
        parts = self.runs.groupby("family", sort=False).groups.items()
        made = [View(self.frames.of(mine), str(name)) for name, mine in parts]
        return [replace(one, kind=kinds[0]) for one in made if (kinds := noise_kinds(one.runs))]


@dataclass(frozen=True)
class Drawing:
    """A chart and its caption; `name` sets apart several of one figure."""

    chart: Any
    caption: str
    name: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure: a function from frames to drawings. A module of your own has one as `FIGURE`."""

    name: str
    """What file names call it."""
    draw: Callable[[View], Iterator[Drawing]]
    of: Literal["noise", "recipe", "all"] = "recipe"
    """Whether it is drawn for each recipe and kind of noise, for each recipe, or once."""
    of_ablations: bool = False
    """Whether it also sees the runs of ablations, which tables leave out."""


def noise_kinds(runs: pd.DataFrame) -> list[str]:
    """The kinds of noise of some runs: that of training first."""
    kinds = sorted({kind for noises in runs["noises"] for kind in noises})
    return sorted(kinds, key=lambda kind: kind not in {*runs["kind"]})


# ---------------------------------------------------------------- which runs are shown


@dataclass(frozen=True)
class Choice:
    """The runs that represent each objective of one cell, as the page's table compares them."""

    cell: Cell
    sides: Mapping[str, Side]
    scores: Mapping[str, float]
    """Of each objective on validation data, the lower the better."""
    is_published: bool
    is_same_model: bool

    @property
    def is_comparison(self) -> bool:
        """Whether a constrained objective and the baseline are among the objectives."""
        return BASELINE in self.sides and any(map(is_constrained, self.sides))

    def worth(self, gamma_train: float | None) -> tuple[Any, ...]:
        """Sorts choices: a comparison at the paper's γ_train first; the depth last, by its score."""
        score, trained = (
            self.scores.get(CONSTRAINED, min(self.scores.values())),
            self.cell.gamma_train,
        )
        kind = (self.is_comparison, trained == gamma_train, trained, self.is_published)
        return (*kind, self.is_same_model, -score, self.cell.layers)


def choices(view: View) -> list[Choice]:
    """Each comparison of each cell under a kind of noise, and each cell without a comparison.

    Where the best run of an objective is not evaluated, the objective is missing, as in the tables;
    where that leaves nothing, the best of the evaluated runs are taken.
    """
    runs, kind = view.runs, view.kind
    if kind not in view.frames.chosen:
        evaluated = runs[[kind in noises for noises in runs["noises"]]]
        view.frames.chosen[kind] = _choices(runs, kind) or _choices(evaluated, kind)
    return view.frames.chosen[kind]


def _choices(runs: pd.DataFrame, kind: str) -> list[Choice]:
    rank, made = criterion(runs), []
    for cell, mine in by_cell(runs).items():
        others = mine[~mine["objective"].isin(SIDES)]
        for match in matches(mine) or [[*mine.index]]:
            models = {*runs.loc[match, "model_text"]}
            like = others[others["model_text"].isin(models)]
            rivals = [*match, *(like if len(like) else others).index]
            chosen = choose(mine.loc[[*dict.fromkeys(rivals)]], kind)
            sides = {name: side for name, side in chosen.items() if side.runs}
            if sides:
                scores = {name: float(rank[side.runs].mean()) for name, side in sides.items()}
                compared = runs.loc[[run for n in SIDES if n in sides for run in sides[n].runs]]
                is_paper = bool(len(compared) and compared["is_published"].all())
                is_same = compared["model_text"].nunique() < 2
                made.append(Choice(cell, sides, scores, is_paper, is_same))
    return made


def pair(view: View, gamma_train: float | None = None) -> dict[str, Side]:
    """The runs of each objective, all of one cell: a row of the page's first table.

    At `gamma_train`, by default that of the paper's Figure 1, or else at the highest at which
    constrained and ERM runs were both trained; of several depths, the best on validation data.
    """
    every = choices(view)
    wanted = PAPER_LEVELS.get(view.metric) if gamma_train is None else gamma_train
    best = max(every, key=lambda one: one.worth(wanted), default=None)
    return {name: best.sides[name] for name in in_order(best.sides)} if best else {}


def best_depths(view: View, gamma_train: float | None) -> dict[str, Side]:
    """The same, with each objective at its own best depth, as in the paper's grids."""
    every = choices(view)
    if not every:
        return {}
    found = max(every, key=lambda one: one.worth(gamma_train))
    key = (
        found.is_comparison,
        found.is_published,
        found.is_same_model,
        replace(found.cell, layers=0),
    )
    alike = [
        one
        for one in every
        if (one.is_comparison, one.is_published, one.is_same_model, replace(one.cell, layers=0))
        == key
    ]
    return {
        name: min((a for a in alike if name in a.sides), key=lambda a: a.scores[name]).sides[name]
        for name in in_order(found.sides)
    }


def trained_at(view: View, sides: Mapping[str, Side], paper: float | None = None) -> str:
    """γ_train of what is shown, and the paper's where it differs: `, γ_train = 0.4 (paper: 0.2)`."""
    levels = {view.frames.row(run).gamma_train for side in sides.values() for run in side.runs}
    text = ", ".join(f"{level:g}" for level in sorted(levels))
    note = f" (paper: {paper:g})" if paper is not None and levels != {paper} else ""
    return f", γ_train = {text}{note}"


# ---------------------------------------------------------------- lines


@dataclass(frozen=True)
class Line:
    """One line of a chart: the runs that it is the mean of, and how it looks."""

    label: str
    runs: list[int]
    color: str
    dash: list[int]
    marker: str


def style(objective: str, others: Iterable[str] = ()) -> tuple[str, list[int], str]:
    """The colour, dash and marker of an objective."""
    unknown = sorted({*others, objective} - {*_STYLES})
    return _STYLES.get(objective) or _SPARE[unknown.index(objective) % len(_SPARE)]


def lines_of(sides: Mapping[str, Side], *, counts: bool = True) -> list[Line]:
    """A line for each objective: `constrained (3 seeds)`."""
    called = objective_labels(sides)
    return [
        Line(
            f"{called[name]} ({side.how})" if counts else called[name],
            side.runs,
            *style(name, sides),
        )
        for name, side in sides.items()
    ]


def shaded(parts: Mapping[str, list[int]], dash: list[int] | None = None) -> list[Line]:
    """Lines for values that have an order, from light to dark."""
    count, lines = len(parts), []
    for index, (label, runs) in enumerate(parts.items()):
        at = 2 * index / max(1, count - 1)
        low, high = _SHADES[min(1, int(at))], _SHADES[min(1, int(at)) + 1]
        red, green, blue = (low + (high - low) * (at - min(1, int(at)))).round().astype(int)
        color = f"#{red:02x}{green:02x}{blue:02x}"
        lines.append(Line(label, runs, color, dash or [1, 0], _MARKERS[index % len(_MARKERS)]))
    return lines


def averaged(table: pd.DataFrame, lines: Sequence[Line], x: str, y: str) -> pd.DataFrame:
    """Mean and band of each line: line, x, y, low, high; only x that all runs of a line have.

    The band is one standard deviation over seeds, or a single run's own 95 % interval.
    """
    parts = []
    for line in lines:
        mine = table[table["run"].isin(line.runs)]
        found = mine.groupby(x)[y].agg(["mean", "std", "size", "count"])
        found = found[(found["size"] == len(line.runs)) & (found["count"] == found["size"])]
        low, high = found["mean"] - found["std"], found["mean"] + found["std"]
        if len(line.runs) == 1 and y == "value":
            low, high = (mine.set_index(x)[end].reindex(found.index) for end in ("low", "high"))
        part = {"line": line.label, "x": found.index, "y": found["mean"], "low": low, "high": high}
        parts.append(pd.DataFrame(part).reset_index(drop=True))
    return (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=["line", "x", "y", "low", "high"])
    )


def curves(view: View, lines: Sequence[Line]) -> pd.DataFrame:
    """The metric against the level."""
    points = view.frames.points
    return averaged(points[points["perturbation"] == view.kind], lines, "gamma", "value")


def by_layer(
    view: View,
    lines: Sequence[Line],
    y: str = "loss",
    split: str = "test",
    level: float | None = None,
) -> pd.DataFrame:
    """A number by layer; on test data at a level, by default that of each run's training."""
    table = view.frames.layers
    table = table[(table["split"] == split) & (table["perturbation"] == view.kind)]
    if split == "test":
        own = [training_level(view.kind, one) for one in view.runs["gamma_train"].loc[table["run"]]]
        table = table[table["gamma"] == (np.array(own) if level is None else level)]
    return averaged(table, lines, "layer", y)


# ---------------------------------------------------------------- panels


def panel(
    rows: pd.DataFrame,
    lines: Sequence[Line],
    x: str,
    y: str,
    title: str | list[str] = "",
    *,
    shade: float | None = None,
    rule: float | None = None,
    rule_name: str = "",
    whole: bool = False,
    log_x: bool = False,
    log_y: bool | None = None,
    bars: bool = False,
    dots: bool = True,
    size: tuple[int, int] = (300, 210),
) -> Any:
    """Lines with bands: `x` and `y` are the titles of the axes, `whole` marks integers on x.

    `shade` ends the range that was seen in training; `rule` is a horizontal line; `bars` draws the
    spread as error bars instead of bands.
    """
    rows = rows[np.isfinite(rows["y"].astype(float))]
    positive = bool(len(rows)) and float(rows["y"].min()) > 0
    if log_y is None:
        log_y = positive and y.endswith("loss") and rows["y"].max() > 20 * rows["y"].min()
    if log_y:
        rows = rows.assign(low=rows["low"].where(rows["low"] > 0))
    labels = [line.label for line in lines]
    legend = alt.Legend(
        title=None,
        orient="bottom",
        columns=1 if max(map(len, labels), default=0) > _LONG else 0,
        symbolSize=500,
        labelLimit=600,
        # Of many lines, the first and the last say in which order the others are.
        values=[labels[0], labels[-1]] if len(labels) > _MOST_NAMED else labels,
    )
    color, dash = (
        kind(
            "line:N",
            scale=alt.Scale(domain=labels, range=[getattr(line, name) for line in lines]),
            legend=legend,
        )
        for kind, name in ((alt.Color, "color"), (alt.StrokeDash, "dash"))
    )
    is_log = bool(log_y and positive)
    x_scale = alt.Scale(type="log" if log_x else "linear", zero=False, nice=not (whole or log_x))
    y_scale = alt.Scale(type="log" if is_log else "linear", zero=False, nice=not is_log)
    ticks = alt.Axis(format="d", tickMinStep=1) if whole else alt.Axis(tickCount=6)
    at_x = alt.X("x:Q", title=x, scale=x_scale, axis=ticks)
    numbers = alt.Axis(format="~s") if len(rows) and rows["y"].max() >= _LARGE else alt.Axis()
    at_y = alt.Y("y:Q", title=y, scale=y_scale, axis=numbers)
    chart = alt.Chart(rows)
    layers = []
    if shade:
        seen = alt.Chart(pd.DataFrame({"from": [min(0.0, float(rows["x"].min()))], "to": [shade]}))
        layers.append(
            seen.mark_rect(color=GREY, opacity=0.14).encode(alt.X("from:Q", title=x), x2="to:Q")
        )
    if rule is not None:
        at = alt.Chart(pd.DataFrame({"y": [rule], "name": [rule_name]}))
        layers.append(at.mark_rule(color=GREY, strokeDash=[3, 3]).encode(y="y:Q"))
        text = at.mark_text(color=GREY, align="right", dx=-3, dy=-6, fontStyle="italic")
        layers.append(text.encode(y="y:Q", x=alt.value(size[0]), text="name:N"))
    ends = {"y": alt.Y("low:Q", title=y, scale=y_scale, axis=numbers), "y2": "high:Q"}
    tooltip = [
        alt.Tooltip("line:N", title=" "),
        alt.Tooltip("x:Q", title=x, format=".4~g"),
        alt.Tooltip("y:Q", title=y, format=".4~g"),
    ]
    layers.append(chart.mark_line(strokeWidth=1.8).encode(at_x, at_y, color=color, strokeDash=dash))
    # With colours of their own, so that the legend shows lines alone.
    for line in lines:
        own = chart.transform_filter(alt.datum.line == line.label)
        spread = own.transform_filter("isValid(datum.low) && isValid(datum.high)")
        if bars:
            layers.append(spread.mark_rule(strokeWidth=1.4, color=line.color).encode(at_x, **ends))
        elif len(lines) <= _MOST_BANDS:
            layers.append(spread.mark_area(opacity=0.16, color=line.color).encode(at_x, **ends))
        if dots:
            points = own.mark_point(
                filled=True, size=30, opacity=1, color=line.color, shape=line.marker
            )
            layers.append(points.encode(at_x, at_y, tooltip=tooltip))
    return alt.layer(*layers).properties(title=title, width=size[0], height=size[1])


def curve_panel(
    view: View, lines: Sequence[Line], title: str | list[str] = "", **options: Any
) -> Any:
    """The metric against the noise level, with the range seen in training shaded."""
    rows = curves(view, lines)
    levels = {
        training_level(view.kind, view.frames.row(run).gamma_train)
        for line in lines
        for run in line.runs
    }
    # Lines trained at different levels share no range.
    shade = max(levels) if len(levels) == 1 else None
    name = f"test {view.metric}"
    chart = panel(rows, lines, axis(view.kind), name, title, shade=shade, **options)
    points = view.frames.points
    runs = [run for line in lines for run in line.runs]
    own = points[points["run"].isin(runs) & (points["perturbation"] == view.kind)]
    noisy = own.dropna(subset="input").drop_duplicates("gamma")[["gamma", "input"]]
    if noisy.empty:
        return chart
    # What a denoiser should improve, with its name at its end.
    base = alt.Chart(noisy).encode(
        alt.X("gamma:Q", title=axis(view.kind)), alt.Y("input:Q", title=name)
    )
    text = alt.Chart(noisy.tail(1)).mark_text(color=GREY, align="right", dx=-14, text="noisy input")
    at = {"x": alt.X("gamma:Q", title=axis(view.kind)), "y": alt.Y("input:Q", title=name)}
    return chart + base.mark_line(color=GREY, strokeDash=[1, 3]) + text.encode(**at)


def axis(kind: str) -> str:
    """The title of an axis of noise levels, with its unit."""
    return "noise level γ (in σ of the input)" if scale_of(kind) == GAMMA else "probability p"


def side_by_side(panels: Sequence[Any], columns: int = 3) -> Any:
    """Panels in a grid, with one legend below."""
    return alt.concat(*panels, columns=min(columns, len(panels)))


def stacked(charts: Sequence[Any]) -> Any:
    """Charts one below the other, each with its own legend."""
    return alt.vconcat(*charts).resolve_scale(color="independent", strokeDash="independent")


def groups_of(runs: Any) -> list[pd.DataFrame]:
    """Runs that differ in nothing but their seed, ordered by the settings that set groups apart."""
    parts = dict(iter(runs.groupby("group", sort=False)))
    return [parts[group] for group in variants_in_order(runs)]
