"""The parts that figures are drawn from: panels, lines with bands, guides, scales of axes, the
legend.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import ticker

#: Values that differ by a larger factor are drawn on a logarithmic axis.
MANY_TIMES = 20
#: Intervals between the ticks of an axis, at most.
_TICKS = 6
#: Height of a line of the legend.
_LINE_INCHES = 0.17
_GUIDE = {"color": "0.5", "linewidth": 1, "linestyle": (0, (1, 2))}


def panels(
    rows: int, columns: int, width: float = 3.6, height: float = 3.0, **options: Any
) -> tuple[Any, Any]:
    """A figure and the grid of its axes; `width` and `height` of each are in inches."""
    size = (1 + width * columns, 0.6 + height * rows)
    figure, grid = plt.subplots(
        rows, columns, figsize=size, constrained_layout=True, squeeze=False, **options
    )
    for axes in grid.flat:
        # Fewer ticks are easier to read, and drawing a figure mostly means drawing ticks.
        axes.locator_params(nbins=_TICKS)
    return figure, grid


def wrapped_panels(count: int, columns: int, **options: Any) -> tuple[Any, list[Any]]:
    """A figure with `count` panels in rows of at most `columns`; the rest of the last row stays
    blank.
    """
    columns = min(columns, count)
    figure, grid = panels(math.ceil(count / columns), columns, **options)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    return figure, list(grid.flat[:count])


def legend_below(figure: Any) -> None:
    """One legend for all panels, below them, where it covers no data."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    longest = max(len(line) for label in handles for line in label.splitlines())
    # About 14 characters of the legend fit on an inch; the line before a label takes eight.
    fitting = int(figure.get_figwidth() * 14 / (longest + 8))
    columns = max(1, min(len(handles), fitting))
    tallest = max(len(label.splitlines()) for label in handles)
    if tallest > 1:
        # Labels of several lines need more room than panels can give away.
        figure.set_figheight(
            figure.get_figheight() + _LINE_INCHES * tallest * math.ceil(len(handles) / columns)
        )
    figure.legend(
        handles.values(),
        handles.keys(),
        frameon=False,
        fontsize=9,
        loc="outside lower center",
        ncols=columns,
    )


def line(
    axes: Any,
    x: Any,
    y: Any,
    low: Any,
    high: Any,
    label: str,
    style: dict[str, Any],
    *,
    crowded: bool = False,
) -> None:
    """A line with a band, which is fainter where many overlap; values that are not finite leave
    gaps.
    """
    axes.plot(x, finite(y), label=label, **{"markersize": 4, "linewidth": 1.6, **style})
    low, high = finite(low), finite(high)
    if np.isfinite(low).any():
        axes.fill_between(
            x, low, high, color=style["color"], alpha=0.05 if crowded else 0.15, linewidth=0
        )


def points(
    axes: Any, x: Any, y: Any, low: Any, high: Any, label: str, style: dict[str, Any]
) -> None:
    """A line with error bars; none where an end is not finite."""
    y = finite(y)
    reach = [np.clip(np.nan_to_num(end), 0, None) for end in (y - finite(low), finite(high) - y)]
    axes.errorbar(
        x,
        y,
        yerr=reach,
        label=label,
        markersize=4,
        linewidth=1.6,
        capsize=3,
        elinewidth=1.2,
        **style,
    )


def finite(values: Any) -> np.ndarray[Any, Any]:
    """The values as an array, with NaN for infinite ones."""
    array = np.asarray(values, dtype=float)
    return np.where(np.isfinite(array), array, np.nan)


def guide(axes: Any, *, x: float | None = None, y: float | None = None, **style: Any) -> None:
    """A thin dotted line across the panel at x or at y."""
    if x is not None:
        axes.axvline(x, **{**_GUIDE, **style})
    if y is not None and math.isfinite(y):
        axes.axhline(y, **{**_GUIDE, **style})


def shade_seen(axes: Any, seen: float, *, low: bool) -> None:
    """Shade the noise levels seen in training, with "ID" at the bottom (`low`) or at the top, away
    from the curve.
    """
    axes.axvspan(0, seen, color="0.92", zorder=0)
    axes.text(
        seen / 2,
        0.02 if low else 0.93,
        "ID",
        transform=axes.get_xaxis_transform(),
        ha="center",
        color="0.4",
    )


def scale_losses(axes: Any, values: Iterable[float]) -> None:
    """A logarithmic y axis where losses differ many times, one from 0 where they halve, else
    Matplotlib's choice.
    """
    levels = [value for value in values if math.isfinite(value)]
    if not levels:
        return
    if max(levels) > MANY_TIMES * min(levels) > 0:
        axes.set_yscale("log")
    elif 0 <= 2 * min(levels) <= max(levels):
        axes.set_ylim(0, 1.1 * max(levels) or 1)


def scale_setting(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic x axis where the values of a setting differ many times."""
    if min(values) > 0 and max(values) > MANY_TIMES * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def layer_ticks(axes: Any, layers: Iterable[int]) -> None:
    """A tick for each layer; of more than a dozen, whose numbers would overlap, for some of them
    and the last.
    """
    ordered = sorted(set(layers))
    axes.set_xticks(ordered[:: -(len(ordered) // 12 + 1)][::-1])


def share_height(axes: Sequence[Any]) -> None:
    """Give panels that are compared the same y axis."""
    ends = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
