"""Groups of runs that differ in nothing but their seed, with their rows of every table: what
figures are drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from cudt.config.differences import differing_keys
from cudt.noise import training_level
from cudt.report import tables
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.comparable import by_group, families


class Singles:
    """Runs as groups of their own: one of each group at once, which takes as long as one, and many
    figures ask.
    """

    def __init__(self, groups: Sequence[Sequence[ReadRun]]) -> None:
        self._groups = groups
        self._made: dict[int, dict[GroupKey, Group]] = {}

    def at(self, number: int) -> dict[GroupKey, Group]:
        """The run with this number in each group that has as many."""
        if number not in self._made:
            runs = [mine[number] for mine in self._groups if len(mine) > number]
            self._made[number] = {group.key: group for group in read_groups(runs)}
        return self._made[number]


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed, and their rows of the report's tables."""

    runs: list[ReadRun]
    curves: pd.DataFrame
    layers: pd.DataFrame
    bins: pd.DataFrame
    singles: Singles
    best_of: int = 0
    """The number of runs that its run was selected from; 0 if none was selected."""

    @property
    def key(self) -> GroupKey:
        return self.runs[0].group

    @property
    def recipe(self) -> str:
        return self.runs[0].recipe

    @property
    def objective(self) -> str:
        return self.runs[0].objective

    @property
    def variant(self) -> str:
        return self.key[2]

    @property
    def metric(self) -> str:
        """The metric's name without underscores."""
        return self.runs[0].metric.replace("_", " ")

    @property
    def higher_is_better(self) -> bool:
        return self.runs[0].higher_is_better

    @property
    def gamma_train(self) -> float:
        return self.runs[0].gamma_train

    @property
    def reference(self) -> float:
        return self.runs[0].reference

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting that shapes training, by dotted key; without the seed."""
        return self.runs[0].settings

    @property
    def n_layers(self) -> int:
        return self.runs[0].n_layers

    def alone(self, run: ReadRun) -> Group:
        """One of its runs as a group."""
        if len(self.runs) == 1:
            return self
        number = next(number for number, mine in enumerate(self.runs) if mine is run)
        return self.singles.at(number)[self.key]

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of noise that the group has a curve for."""
        return sorted(self._by_kind)

    def level(self, kind: str) -> float:
        """The highest level seen in training."""
        return training_level(kind, self.gamma_train)

    def curve(self, kind: str) -> pd.DataFrame:
        """The metric by level with the ends of its band: one standard deviation over seeds, or one
        seed's interval.
        """
        found = self._by_kind.get(kind)
        return self.curves.iloc[:0].assign(lower=[], upper=[]) if found is None else found

    def input_curve(self, kind: str) -> pd.DataFrame | None:
        """The metric of the noisy input by level, in the column `input`; None for tasks where it is
        no answer.
        """
        found = self.curve(kind).dropna(subset="input")
        return None if found.empty else found

    @cached_property
    def _by_kind(self) -> dict[Any, pd.DataFrame]:
        rows = self.curves
        banded = rows.assign(
            lower=rows["low"].where(rows["std"].isna(), rows["mean"] - rows["std"]),
            upper=rows["high"].where(rows["std"].isna(), rows["mean"] + rows["std"]),
        )
        return dict(iter(banded.groupby("perturbation")))

    def at(self, kind: str, level: float | None = None, split: str = "test") -> pd.DataFrame:
        """Loss and metric by layer at a level, by default the level of training."""
        level = self.level(kind) if level is None else level
        return self._by_level.get((split, kind, level), self.layers.iloc[:0])

    @cached_property
    def _by_level(self) -> dict[Any, pd.DataFrame]:
        return dict(iter(self.layers.groupby(["split", "perturbation", "gamma"])))

    def seeds(self, kind: str) -> int:
        """The number of seeds the curve is a mean of."""
        seeds = self.curve(kind)["seeds"]
        return int(seeds.max()) if len(seeds) else 0


def read_groups(runs: Sequence[ReadRun], curves: pd.DataFrame | None = None) -> list[Group]:
    """The groups of some runs in their order; pass `curves` if `tables.curves` has been computed
    already.
    """
    if not runs:
        return []
    curves = tables.curves(runs) if curves is None else curves
    parts = [
        _rows_by_group(table)
        for table in (curves, tables.layer_losses(runs), tables.ratio_bins(runs))
    ]
    found, made = by_group(runs), []
    singles = Singles(list(found.values()))
    for key, mine in found.items():
        curve, layers, bins = (part.get(key, empty) for part, empty in parts)
        made.append(Group(mine, curve, layers, bins, singles))
    return made


def by_recipe(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each family (comparable.py), most often a recipe; variants ordered by the
    settings that differ.
    """
    found = families(run for group in groups for run in group.runs[:1])
    names = {run.group: name for name, runs in found.items() for run in runs}
    recipes: dict[str, list[Group]] = {}
    for group in groups:
        recipes.setdefault(names[group.key], []).append(group)
    return {
        recipe: [part for mine in _by_objective(found) for part in _in_order(mine)]
        for recipe, found in recipes.items()
    }


def _by_objective(groups: Sequence[Group]) -> list[list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.objective, []).append(group)
    return list(found.values())


def _in_order(groups: Sequence[Group]) -> list[Group]:
    """Order groups by the values of the settings that differ: numbers by size, then words."""
    keys = differing_keys([group.settings for group in groups])

    def sort_key(group: Group) -> list[tuple[bool, float, str]]:
        values = [group.settings.get(key) for key in keys]
        return [
            (False, value, "") if isinstance(value, int | float) else (True, 0, str(value))
            for value in values
        ]

    return sorted(groups, key=sort_key)


def _rows_by_group(table: pd.DataFrame) -> tuple[dict[Any, pd.DataFrame], pd.DataFrame]:
    """The rows of each group, and an empty table for groups without rows."""
    return dict(iter(table.groupby(["recipe", "objective", "variant"]))), table.iloc[:0]
