"""Groups from folders, for every test of the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cudt.config.recipe import NamedRecipe
from cudt.report.collect import ReadRun, collect
from cudt.report.groups import Group, by_recipe, read_groups
from tests.report import with_info


def groups_of(*folders: Path) -> list[Group]:
    """All groups below some folders, as figures are given them."""
    return in_groups(collect(list(folders)).runs)


def in_groups(runs: Sequence[ReadRun]) -> list[Group]:
    return [group for groups in by_recipe(read_groups(runs)).values() for group in groups]


def variant_of(run: ReadRun, name: str, sections: dict[str, dict[str, Any]], **info: Any) -> ReadRun:
    """A copy of a run with other settings, in memory: many folders would take long to write."""
    settings = run.run.recipe.settings
    changes = {key: getattr(settings, key).model_copy(update=values) for key, values in sections.items()}
    recipe = NamedRecipe(run.recipe, settings.model_copy(update=changes))
    return replace(with_info(run, variant=name, **info), run=replace(run.run, recipe=recipe))


def points_of(line: Any) -> list[list[float]]:
    return [[float(part) for part in point] for point in line.get_xydata()]


def named_lines(axes: Any) -> dict[str, Any]:
    """The lines of a panel that have a label."""
    return {line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]
