"""A panel that shows the metric against the noise level, which many figures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudt.noise import scale_of
from cudt.report import objectives
from cudt.report.figures.panels import line, shade_seen
from cudt.report.figures.style import MOST_BANDS, NOISY_INPUT
from cudt.report.figures.words import labels, seeds_of_each, styles
from cudt.report.groups import Group

#: Characters that fit above a panel.
_TITLE_WIDTH = 42


def draw_curves(
    axes: Any, groups: Sequence[Group], kind: str, title: str | None = None, *, counts: bool = True
) -> None:
    """Draw each group's metric against the noise level, with the levels seen in training shaded."""
    named, drawn = labels(groups, kind, counts=counts), styles(groups)
    crowded = len(groups) > MOST_BANDS
    for group in groups:
        draw_curve(axes, group, kind, named[group.key], drawn[group.key], crowded=crowded)
    dress_curves(axes, groups, kind)
    axes.set_title(f"Under {kind} noise" if title is None else title)


def draw_curve(
    axes: Any, group: Group, kind: str, label: str, style: dict[str, Any], *, crowded: bool = False
) -> None:
    """Draw one group's metric against the noise level."""
    rows = group.curve(kind)
    line(
        axes,
        rows["gamma"],
        rows["mean"],
        rows["lower"],
        rows["upper"],
        label,
        style,
        crowded=crowded,
    )


def _draw_input(axes: Any, groups: Sequence[Group], kind: str) -> None:
    """Draw the metric of the noisy input itself, which a denoiser should improve; nothing for other
    tasks.
    """
    noisy = next((rows for group in groups if (rows := group.input_curve(kind)) is not None), None)
    if noisy is not None:
        axes.plot(noisy["gamma"], noisy["input"], label="noisy input", **NOISY_INPUT)


def dress_curves(axes: Any, groups: Sequence[Group], kind: str) -> None:
    """Name the axes of curves, shade the levels seen in training, and draw the noisy input where it
    is an answer.
    """
    _draw_input(axes, groups, kind)
    levels = {group.level(kind) for group in groups}
    highest = max(group.curve(kind)["gamma"].max() for group in groups)
    axes.set_xlim(0, 1.03 * max(highest, *levels) or 1)
    # Groups trained at different levels share no in-distribution range.
    if len(levels) == 1 and max(levels):
        shade_seen(axes, max(levels), low=groups[0].higher_is_better)
    axes.set(xlabel=scale_of(kind).axis, ylabel=f"test {groups[0].metric}")


def panel_title(name: str, groups: Sequence[Group], kind: str) -> str:
    """A title that says at which γ_train and depth the groups were trained, and on how many
    seeds.
    """
    trained = f"γ_train = {groups[0].gamma_train:g}, L = {_depths(groups)}"
    seeds = seeds_of_each(groups, kind)
    lines = (
        [name, f"{trained}, {seeds}"]
        if len(trained + seeds) <= _TITLE_WIDTH
        else [name, trained, seeds]
    )
    return "\n".join(line for line in lines if line)


def _depths(groups: Sequence[Group]) -> str:
    """The depth, or that of each objective: `5 (constrained), 3 (erm)`."""
    if len({group.n_layers for group in groups}) == 1:
        return str(groups[0].n_layers)
    called = objectives.labels(group.objective for group in groups)
    return ", ".join(f"{group.n_layers} ({called[group.objective]})" for group in groups)
