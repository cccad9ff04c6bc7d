"""Groups from folders, for every test of the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cudt.report.collect import collect
from cudt.report.figures.groups import Group, by_recipe, read_groups


def groups_of(*folders: Path) -> list[Group]:
    """All groups below some folders, as figures are given them."""
    recipes = by_recipe(read_groups(collect(list(folders)).runs))
    return [group for groups in recipes.values() for group in groups]


def points_of(line: Any) -> list[list[float]]:
    return [[float(part) for part in point] for point in line.get_xydata()]


def named_lines(axes: Any) -> dict[str, Any]:
    """The lines of a panel that have a label."""
    return {line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]
