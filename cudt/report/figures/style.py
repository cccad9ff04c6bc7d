"""One style for every figure: colours that colour-blind readers tell apart, solid for constrained, dashed for ERM."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib import colors, ticker

from cudt.utils.files import write_atomically

#: Okabe and Ito's palette.
STYLES: dict[str, dict[str, Any]] = {
    "constrained": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "erm": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "supervised": {"color": "#009E73", "linestyle": ":", "marker": "^"},
}

#: For several variants of one objective.
MARKERS = "os^Dvxp*"
#: Lines in one panel that can still be told apart without an order of colours.
MOST_LINES = 8
#: More bands than these would be one grey patch.
MOST_BANDS = 3
#: Values that differ more are drawn on a logarithmic axis.
MANY_TIMES = 20
#: Steps between the numbers of an axis, at most.
_TICKS = 6

_GUIDE = {"color": "0.5", "linewidth": 1, "linestyle": (0, (1, 2))}


@dataclass(frozen=True)
class Figure:
    """A figure on disk; the PNG goes into the page, the PDF into papers. Over several recipes, `recipe` is empty."""

    recipe: str
    title: str
    png: Path
    pdf: Path


# ---------------------------------------------------------------- the sheet


def panels(rows: int, columns: int, width: float = 3.6, height: float = 3.0, **options: Any) -> tuple[Any, Any]:
    """A figure and the grid of its axes, each so many inches large."""
    size = (1 + width * columns, 0.6 + height * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, constrained_layout=True, squeeze=False, **options)
    for axes in grid.flat:
        # Fewer numbers are easier to read, and most of the time that a figure takes goes into them.
        axes.locator_params(nbins=_TICKS)
    return figure, grid


def wrapped(count: int, columns: int, **options: Any) -> tuple[Any, list[Any]]:
    """The same for a number of panels in rows; what is left over of the last row stays blank."""
    columns = min(columns, count)
    figure, grid = panels(math.ceil(count / columns), columns, **options)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    return figure, list(grid.flat[:count])


def legend_below(figure: Any) -> None:
    """One legend for all panels, below them, where no data are."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    longest = max(len(label) for label in handles)
    # About 14 characters of the legend fit on an inch; the line before a label takes eight.
    fitting = int(figure.get_figwidth() * 14 / (longest + 8))
    columns = max(1, min(len(handles), fitting))
    figure.legend(
        handles.values(), handles.keys(), frameon=False, fontsize=9, loc="outside lower center", ncols=columns
    )


def save(figure: Any, recipe: str, title: str, stem: Path, *, grid: bool = True) -> Figure:
    """Write a figure in both formats, in the house's style."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        if grid:
            axes.grid(alpha=0.25, linewidth=0.6)
    paths = {kind: stem.parent / f"{stem.name}.{kind}" for kind in ("png", "pdf")}
    with warnings.catch_warnings():
        # A recipe may be called in a script that the font has not; boxes stand for it.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        _lay_out_once(figure)
        for kind, path in paths.items():
            write_atomically(path, partial(figure.savefig, format=kind, dpi=150))
    plt.close(figure)
    return Figure(recipe, title, paths["png"], paths["pdf"])


def _lay_out_once(figure: Any) -> None:
    """Each format would find the same layout again, twice, which takes longer than drawing."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


# ---------------------------------------------------------------- what is drawn


def line(
    axes: Any, x: Any, y: Any, low: Any, high: Any, label: str, style: dict[str, Any], *, crowded: bool = False
) -> None:
    """A line with a band, a faint one where many lie upon each other; numbers that are not finite leave gaps."""
    axes.plot(x, finite(y), label=label, **{"markersize": 4, "linewidth": 1.6, **style})
    low, high = finite(low), finite(high)
    if np.isfinite(low).any():
        axes.fill_between(x, low, high, color=style["color"], alpha=0.05 if crowded else 0.15, linewidth=0)


def points(axes: Any, x: Any, y: Any, low: Any, high: Any, label: str, style: dict[str, Any]) -> None:
    """A line with error bars; a bar without ends is left out."""
    y = finite(y)
    reach = [np.clip(np.nan_to_num(end), 0, None) for end in (y - finite(low), finite(high) - y)]
    axes.errorbar(x, y, yerr=reach, label=label, markersize=4, linewidth=1.6, capsize=3, elinewidth=1.2, **style)


def finite(values: Any) -> np.ndarray[Any, Any]:
    """Numbers, with nan for those that are infinite."""
    array = np.asarray(values, dtype=float)
    return np.where(np.isfinite(array), array, np.nan)


def guide(axes: Any, *, x: float | None = None, y: float | None = None, **style: Any) -> None:
    """A thin dotted line across the panel, at an x or a y."""
    if x is not None:
        axes.axvline(x, **{**_GUIDE, **style})
    if y is not None and math.isfinite(y):
        axes.axhline(y, **{**_GUIDE, **style})


def shade_seen(axes: Any, seen: float, low: bool) -> None:
    """The levels seen in training, named where the curve is not: low down, or high up."""
    axes.axvspan(0, seen, color="0.92", zorder=0)
    axes.text(seen / 2, 0.02 if low else 0.93, "ID", transform=axes.get_xaxis_transform(), ha="center", color="0.4")


def scale_losses(axes: Any, values: Iterable[float]) -> None:
    """By logarithm where losses differ many times, from 0 on where they halve; else as matplotlib sees fit."""
    levels = [value for value in values if math.isfinite(value)]
    if not levels:
        return
    if max(levels) > MANY_TIMES * min(levels) > 0:
        axes.set_yscale("log")
    elif 0 <= 2 * min(levels) <= max(levels):
        axes.set_ylim(0, 1.1 * max(levels) or 1)


def layer_ticks(axes: Any, layers: Iterable[int]) -> None:
    """A number for each layer; of more than a dozen, which would run into each other, for some and the last."""
    ordered = sorted(set(layers))
    axes.set_xticks(ordered[:: -(len(ordered) // 12 + 1)][::-1])


def scale_setting(axes: Any, values: Sequence[float]) -> None:
    """The axis of a setting: by logarithm where its values differ many times."""
    if min(values) > 0 and max(values) > MANY_TIMES * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def in_order(count: int) -> list[dict[str, Any]]:
    """Styles for values that have an order: light to dark, so that a grey print keeps it."""
    shades = matplotlib.colormaps["cividis_r"](np.linspace(0.12, 1, count) if count > 1 else [1.0])
    return [{"color": colors.to_hex(shade), "marker": MARKERS[i % len(MARKERS)]} for i, shade in enumerate(shades)]


def variant_style(objective: str, place: int, count: int) -> dict[str, Any]:
    """An objective's style; its variants have shades of its colour and markers of their own."""
    style = dict(STYLES.get(objective, {"color": "#000000", "linestyle": "-.", "marker": "D"}))
    if count > 1:
        paler = 0.6 * place / (count - 1)
        red, green, blue = (part + (1 - part) * paler for part in colors.to_rgb(style["color"]))
        style["color"] = colors.to_hex((red, green, blue))
        style["marker"] = MARKERS[place % len(MARKERS)]
    return style


# ---------------------------------------------------------------- words


def plain(text: str) -> str:
    """A text of a user as Matplotlib draws it, none of which is a formula; long ones are cut."""
    return short(text).replace("$", r"\$")


def short(text: str) -> str:
    """A text of a user in one line; long ones are cut."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:59] + "…"


def seeds_text(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"
