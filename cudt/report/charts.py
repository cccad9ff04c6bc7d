"""What figures share: which runs they show, their lines with bands, and panels of them in Altair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from cudt.config.levels import GAMMA, scale_of, training_level
from cudt.report.compare import (
    BASELINE,
    CONSTRAINED,
    Side,
    choices,
    criterion,
    in_order,
    short,
    without_ablations,
)
from cudt.report.frames import Frames

#: Colour of Okabe and Ito's palette and dash of each objective that comes with cudt.
_STYLES = {
    CONSTRAINED: ("#0072B2", [1, 0]),
    BASELINE: ("#D55E00", [6, 3]),
    "supervised": ("#009E73", [2, 2]),
}
#: For all other objectives.
_OTHER = ("#CC79A7", [8, 3, 2, 3])
#: γ_train of the paper's Figure 1, its main results on video and Llama, by metric.
PAPER_LEVELS = {"accuracy": 0.2, "RMSE": 0.13, "token accuracy": 0.25}
#: More bands than these overlap to one grey patch; of more lines, the legend has the ends.
_MOST_BANDS, _MOST_NAMED = 3, 12
GREY = "#888888"

Sides = Mapping[str, Side]


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
    def axis(self) -> str:
        """The title of an axis of noise levels, with its unit."""
        is_added = scale_of(self.kind) == GAMMA
        return "noise level γ (in σ of the input)" if is_added else "probability p"

    @property
    def kinds(self) -> list[str]:
        """The kinds of noise that runs were evaluated under: that of training first."""
        kinds = sorted({kind for noises in self.runs["noises"] for kind in noises})
        return sorted(kinds, key=lambda kind: kind not in {*self.runs["kind"]})

    @property
    def evaluated(self) -> Any:
        """The runs that were evaluated under this kind of noise."""
        return self.runs.loc[[self.kind in noises for noises in self.runs["noises"]]]

    @cached_property
    def points(self) -> pd.DataFrame:
        """The metric of each run at each level."""
        return self.frames.points[self.frames.points["perturbation"] == self.kind]

    @cached_property
    def layers(self) -> pd.DataFrame:
        """Loss and metric of each layer on test data; `is_trained` at the level of training."""
        table = self.frames.layers
        table = table[(table["split"] == "test") & (table["perturbation"] == self.kind)]
        trained = self.runs["gamma_train"].loc[table["run"]]
        levels = [training_level(self.kind, one) for one in trained]
        return table.assign(is_trained=table["gamma"] == levels)

    def of(self, runs: Iterable[int]) -> View:
        """The same with some of the runs."""
        return View(self.frames.of(runs), self.name, self.kind)

    def families(self) -> list[View]:
        """A view of each family, under its main kind of noise."""
        parts = self.runs.groupby("family", sort=False).groups.items()
        made = [View(self.frames.of(mine), str(name)) for name, mine in parts]
        return [replace(one, kind=one.kinds[0]) for one in made if one.kinds]

    def pair(self, gamma: float | None = None, *, own_depths: bool = False) -> dict[str, Side]:
        """The runs of each objective, all of one cell: a row of the page's first table.

        At `gamma`, by default γ_train of the paper's Figure 1, or else at the highest at which
        constrained and ERM runs were both trained; of several depths, the best on validation data:
        one for all, or each objective's own, as in the paper's grids.
        """
        wanted = PAPER_LEVELS.get(self.metric) if gamma is None else gamma
        rank = criterion(without_ablations(self.runs))

        def kind(sides: Sides) -> tuple[Any, ...]:
            runs = self.runs.loc[runs_of(sides)]
            trained, is_paper = runs["gamma_train"].iloc[0], bool(runs["is_published"].all())
            is_comparison = BASELINE in sides and bool(runs["is_constrained"].any())
            # Of other comparisons, those of equal models are fairer.
            is_fair = runs["model_text"].nunique() == 1
            return is_comparison, trained == wanted, trained, is_paper, is_fair

        def score(side: Side) -> float:
            return float(rank[side.runs].mean())

        def order(sides: Sides) -> tuple[Any, ...]:
            best = sides.get(CONSTRAINED) or min(sides.values(), key=score)
            return kind(sides), -score(best), self.frames.row(best.runs[0]).n_layers

        ranked = sorted(choices(self.runs, self.kind), key=order)
        alike = [sides for sides in ranked if kind(sides) == kind(ranked[-1])]
        shown = {}
        for name in in_order(ranked[-1]) if ranked else []:
            sides = [one[name] for one in (alike if own_depths else ranked[-1:]) if name in one]
            shown[name] = min(sides, key=score)
        return shown

    def losses(self, lines: Sequence[Line], title: Any = "Loss by layer", **options: Any) -> Any:
        """A panel of the test loss of each layer at the level of training."""
        rows = averaged(self.layers[self.layers["is_trained"]], lines, "layer", "loss")
        return panel(rows, lines, "layer", "test loss", title, **options)

    def curves(self, lines: Sequence[Line], title: Any, **options: Any) -> Any:
        """A panel of the metric against the noise level, with the range seen in training shaded,
        and what the noisy input itself has, which a denoiser should improve.
        """
        shown = self.points[self.points["run"].isin([run for line in lines for run in line.runs])]
        name = f"test {self.metric}"
        rows = averaged(self.points, lines, "gamma", "value")
        chart = panel(rows, lines, self.axis, name, title, **options)
        trained = self.runs["gamma_train"].loc[shown["run"]]
        levels = {training_level(self.kind, one) for one in trained}
        if len(levels) == 1:  # Lines trained at different levels share no range.
            ends = pd.DataFrame({"x": [min(0.0, shown["gamma"].min())], "x2": [*levels]})
            seen = alt.Chart(ends).mark_rect(color=GREY, opacity=0.14)
            chart = seen.encode(alt.X("x:Q", title=self.axis), x2="x2:Q") + chart
        noisy = shown.dropna(subset="input").drop_duplicates("gamma")[["gamma", "input"]]
        at = {"x": alt.X("gamma:Q", title=self.axis), "y": alt.Y("input:Q", title=name)}
        own = alt.Chart(noisy).mark_line(color=GREY, strokeDash=[1, 3]).encode(**at)
        text = alt.Chart(noisy.tail(1)).mark_text(
            color=GREY, align="right", dx=-14, text="noisy input"
        )
        return chart + own + text.encode(**at) if len(noisy) else chart

    def trained_at(self, sides: Sides) -> str:
        """γ_train of what is shown: `, γ_train = 0.4`."""
        levels = sorted({*self.runs["gamma_train"].loc[runs_of(sides)]})
        return f", γ_train = {', '.join(f'{level:g}' for level in levels)}"


def runs_of(sides: Sides) -> list[int]:
    """The runs of all sides."""
    return [run for side in sides.values() for run in side.runs]


@dataclass(frozen=True)
class Line:
    """One line of a chart: the runs that it is the mean of, and how it looks."""

    label: str
    runs: list[int]
    color: str
    """Empty for a line of an ordered set, which has colours from dark to light."""
    dash: list[int]


def plain_line(objective: str, runs: Iterable[int] = (), how: str = "") -> Line:
    """A line in the colour and dash of an objective: `constrained (3 seeds)`."""
    label = short(objective) + (f" ({how})" if how else "")
    return Line(label, [*runs], *_STYLES.get(objective, _OTHER))


def lines_of(sides: Sides) -> list[Line]:
    """A line for each objective."""
    return [plain_line(name, side.runs, side.how) for name, side in sides.items()]


def shaded(parts: Mapping[str, list[int]], dash: Sequence[int] = (1, 0)) -> list[Line]:
    """Lines for values that have an order."""
    return [Line(label, runs, "", [*dash]) for label, runs in parts.items()]


def averaged(table: pd.DataFrame, lines: Sequence[Line], x: str, y: str) -> pd.DataFrame:
    """Mean and band of each line: line, x, y, low, high; only x that all runs of a line have.

    The band is one standard deviation over seeds, or a single run's own 95 % interval.
    """
    pairs = [(line.label, run) for line in lines for run in line.runs]
    members = pd.DataFrame(pairs, columns=["line", "run"]).astype({"run": int})
    grouped = members.merge(table, on="run").groupby(["line", x])
    rows = spread(grouped[y])
    if y == "value":
        rows = rows.fillna(grouped[["low", "high"]].first())
    n_runs = rows.index.get_level_values("line").map(members["line"].value_counts())
    return rows[grouped[y].count() == n_runs].rename_axis(["line", "x"]).reset_index()


def spread(grouped: Any) -> pd.DataFrame:
    """Mean and standard deviation of groups of numbers: y, low, high."""
    mean, deviation = grouped.mean(), grouped.std()
    return pd.DataFrame({"y": mean, "low": mean - deviation, "high": mean + deviation})


def panel(
    rows: pd.DataFrame,
    lines: Sequence[Line],
    x: str,
    y: str,
    title: str | list[str] = "",
    *,
    rule: float | None = None,
    is_log_x: bool = False,
    bars: bool = False,
    dots: bool = True,
    size: tuple[int, int] = (300, 210),
) -> Any:
    """Lines with bands, or with error bars; `x` and `y` are the titles of the axes.

    The legend has all `lines`: panels with the same ones share it. `rule` is a horizontal line.
    """
    rows = rows[np.isfinite(rows["y"].astype(float))]
    is_log = y.startswith("test loss") and rows["y"].max() > 20 * rows["y"].min() > 0
    if is_log:
        rows = rows.assign(low=rows["low"].where(rows["low"] > 0))
    ticks = alt.Axis(tickCount=6, tickMinStep=1 if x.startswith("layer") else 0)
    x_scale = alt.Scale(type="log" if is_log_x else "linear", zero=False, nice=False, padding=6)
    y_scale = alt.Scale(type="log" if is_log else "linear", zero=False, nice=not is_log)
    at_x = alt.X("x:Q", title=x, scale=x_scale, axis=ticks)
    # Large numbers as 10k and 2M.
    number = alt.Axis(format="~s") if rows["y"].max() >= 10_000 else alt.Axis()
    at_y, low = (alt.Y(f"{end}:Q", title=y, scale=y_scale, axis=number) for end in ("y", "low"))
    stroke, dash, fill = _line_scales(lines)
    tooltip = [
        alt.Tooltip("line:N", title=" "),
        alt.Tooltip("x:Q", title=x, format=".4~g"),
        alt.Tooltip("y:Q", title=y, format=".4~g"),
    ]
    chart = alt.Chart(rows).encode(at_x)
    layers = [chart.mark_line(strokeWidth=1.8).encode(at_y, stroke, dash)]
    spread = chart.transform_filter("isValid(datum.low) && isValid(datum.high)")
    if bars:
        layers.append(spread.mark_rule(strokeWidth=1.4).encode(low, stroke, y2="high:Q"))
    elif len(lines) <= _MOST_BANDS:
        layers.append(spread.mark_area(opacity=0.16).encode(low, fill, y2="high:Q"))
    if dots:
        points = chart.mark_point(filled=True, size=30, opacity=1)
        layers.append(points.encode(at_y, fill, tooltip=tooltip))
    if rule is not None:
        mark = alt.Chart(pd.DataFrame({"y": [rule]})).mark_rule(color=GREY, strokeDash=[3, 3])
        layers.append(mark.encode(y="y:Q"))
    return alt.layer(*layers).properties(title=title, width=size[0], height=size[1])


def _line_scales(lines: Sequence[Line]) -> tuple[Any, Any, Any]:
    """Stroke and dash of lines, with a legend below; and the fill of their dots and bands."""
    labels, colors = [line.label for line in lines], [line.color for line in lines]
    shown = [labels[0], labels[-1]] if len(labels) > _MOST_NAMED else labels
    below: dict[str, Any] = {"title": None, "orient": "bottom", "columns": 3}
    legend = alt.Legend(values=shown, symbolSize=500, labelLimit=400, **below)
    palette: Any = {"range": colors} if any(colors) else {"scheme": "viridis"}
    color = alt.Scale(domain=labels, **palette)
    dashes = alt.Scale(domain=labels, range=[line.dash for line in lines])
    return (
        alt.Stroke("line:N", scale=color, legend=legend),
        alt.StrokeDash("line:N", scale=dashes, legend=legend),
        alt.Fill("line:N", scale=color, legend=None),
    )


def side_by_side(panels: Sequence[Any], columns: int = 3) -> Any:
    """Panels in a grid, with one legend below."""
    return alt.concat(*panels, columns=min(columns, len(panels)))


def stacked(charts: Sequence[Any]) -> Any:
    """Charts one below the other, each with its own legend."""
    own: dict[str, Any] = dict.fromkeys(("stroke", "strokeDash", "fill"), "independent")
    return alt.vconcat(*charts).resolve_scale(**own)
