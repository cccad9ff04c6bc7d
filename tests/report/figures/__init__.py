"""Groups of runs, and what a figure shows, for every test of the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cudt.config.recipe import NamedRecipe
from cudt.report import figures
from cudt.report.collect import ReadRun, collect
from cudt.report.figures import Figure
from cudt.report.groups import Group, by_recipe, read_groups
from cudt.runs.run import Run
from tests.report import make_run, with_info

#: The noise levels of `make_ablation`.
ABLATION_LEVELS = (0.0, 1.05, 1.65, 2.1)


def groups_of(*folders: Path) -> list[Group]:
    """All groups of runs below some folders, as figures get them."""
    return in_groups(collect(list(folders)).runs)


def in_groups(runs: Sequence[ReadRun]) -> list[Group]:
    return [group for groups in by_recipe(read_groups(runs)).values() for group in groups]


def draw(groups: Sequence[Group], out: Path, **options: Any) -> list[Figure]:
    """Every figure of some groups, drawn and saved in this process."""
    return [job() for job in figures.plan(groups, out, **options)]


def variant_of(
    run: ReadRun,
    name: str,
    sections: dict[str, dict[str, Any]],
    *,
    objective: str | None = None,
    **info: Any,
) -> ReadRun:
    """A copy of a run with other settings, in memory: writing many folders would take long.

    The objective is not validated, as if its plug-in were not installed.
    """
    settings = run.run.recipe.settings
    changes = {
        key: getattr(settings, key).model_copy(update=values) for key, values in sections.items()
    }
    recipe = NamedRecipe(run.recipe, settings.model_copy(update=changes))
    changed = with_info(run, variant=name, **info).info.model_copy(
        update={"objective": objective or run.objective}
    )
    return replace(run, run=replace(run.run, recipe=recipe), info=changed)


def make_ablation(
    trained_run: Run, out: Path, key: str, values: Sequence[float], seeds: int = 2
) -> list[Group]:
    """Groups that differ in one setting only; the accuracy falls with the level of noise and with
    each value."""
    for index, value in enumerate(values):
        for seed in range(seeds):
            curve = {
                level: 1 - 0.1 * level * (index + 1) - 0.02 * seed for level in ABLATION_LEVELS
            }
            make_run(trained_run, out, curve, seed=seed, overrides=[f"{key}={value}"])
    return groups_of(out)


def make_depths(
    trained_run: Run,
    out: Path,
    layers: Sequence[int] = (3, 5, 7),
    seeds: int = 2,
    gamma: float = 0.4,
) -> list[Group]:
    """Groups of two objectives that differ in their depth only; constrained ones get better with
    it."""
    for objective in ("constrained", "erm"):
        for count in layers:
            for seed in range(seeds):
                better = 0.01 * count if objective == "constrained" else 0.0
                curve = {0.0: 0.8 + better - 0.02 * seed, 0.5: 0.7 + better, 2.0: 0.5 + better}
                losses = np.linspace(1, 0.5, count).tolist()
                changes: dict[str, Any] = {
                    "objective": objective,
                    "losses": losses,
                    "gamma_train": gamma,
                    "seed": seed,
                }
                overrides = [f"model.layers={count}", f"noise.gamma_train={gamma}"]
                run = make_run(trained_run, out, curve, overrides=overrides, **changes)
                rows = run.read_table("layers")
                run.write_table("layers", rows.assign(gamma=gamma))
    return groups_of(out)


def points_of(line: Any) -> list[list[float]]:
    return [[float(part) for part in point] for point in line.get_xydata()]


def named_lines(axes: Any) -> dict[str, Any]:
    """The lines of a panel that have a label."""
    return {
        line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")
    }


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]
