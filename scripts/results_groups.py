"""The groups of runs that a table of docs/results.md shows, from results/tables/ (results_page.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

GROUP = ["recipe", "objective", "variant"]
_ORDER = {"erm": 0, "supervised": 1, "constrained": 2}


def read(tables: Path, name: str, wanted: dict[str, str]) -> pd.DataFrame:
    """The rows of a table that have one of the wanted values; numbers are compared as numbers. Empty without a file."""
    if not (tables / f"{name}.csv").is_file():
        return pd.DataFrame()
    table = pd.read_csv(tables / f"{name}.csv", keep_default_na=False, na_values=[""])
    for key, value in wanted.items():
        if key in table:
            is_number = pd.api.types.is_numeric_dtype(table[key])
            table = table[table[key].isin([float(one) if is_number else one for one in value.split(",")])]
    return table


def groups_of(tables: Path, wanted: dict[str, str]) -> pd.DataFrame:
    """The evaluated groups of runs by setting and objective, each named after its setting and arm in a sweep."""
    groups = read(tables, "table", wanted)
    groups = groups[groups["evaluated"] > 0]
    cells = _cells(tables, wanted)
    found = [cells.get((group["recipe"], plain(group["variant"]))) for _, group in groups.iterrows()]
    if "search" in wanted:
        in_sweep = pd.Series([cell is not None for cell in found], groups.index, dtype=bool)
        groups, found = groups[in_sweep], [cell for cell in found if cell is not None]
    said = {f"with_{name}": len({getattr(cell, name) for cell in cells.values()}) > 1 for name in ("arm", "setting")}
    labels = [cell.named(**said) if cell else old for cell, old in zip(found, groups["label"], strict=True)]
    order = [cell.number if cell else 0 for cell in found]
    settings, arms = ([getattr(cell, name, "") for cell in found] for name in ("setting", "arm"))
    named = groups.assign(label=labels, setting=settings, arm=arms, number=order)
    by_objective = named.sort_values("objective", key=lambda names: names.map(_ORDER), kind="stable")
    return by_objective.sort_values("number", kind="stable")


def plain(variant: str) -> str:
    """A group's variant without the number of its test data, which a report adds if a recipe has several."""
    return variant.partition("-")[0]


@dataclass(frozen=True)
class _Cell:
    """An arm of a sweep in one of its settings."""

    arm: str
    setting: str
    number: int
    """Of the setting, in the order of the sweep."""

    def named(self, *, with_arm: bool, with_setting: bool) -> str:
        """The arm and the setting in short, where a sweep has several of them."""
        setting = re.sub(r"[\w.]*?(\w+)=", r"\1 ", self.setting) if with_setting else ""
        return ", ".join([self.arm] * (with_arm or not setting) + [setting] * bool(setting))


def _cells(tables: Path, wanted: dict[str, str]) -> dict[tuple[str, str], _Cell]:
    """What the groups of runs, by recipe and variant, are called in sweeps; in one of them if it is named."""
    if not (tables / "trials.csv").is_file():
        return {}
    trials = read(tables, "trials", {"recipe": wanted["recipe"]} if "recipe" in wanted else {})
    if "search" in wanted:
        trials = trials[trials["search"].isin(wanted["search"].split(","))]
    settings = [*dict.fromkeys(trials["setting"].fillna(""))]
    cells: dict[tuple[str, str], _Cell] = {}
    for _, trial in trials.fillna({"setting": ""}).iterrows():
        cell = _Cell(trial["arm"], trial["setting"], settings.index(trial["setting"]) if "search" in wanted else 0)
        cells.setdefault((trial["recipe"], trial["variant"]), cell)
    return cells


def against(paired: pd.DataFrame, group: pd.Series, other: str, groups: pd.DataFrame) -> pd.DataFrame:
    """The difference of a group and another objective, of the same setting of the sweep if it has several."""
    same_group = (paired[GROUP] == group[GROUP]).all(axis=1)
    if "perturbation" in paired:
        same_group &= paired["perturbation"] == group["perturbation"]
    mine = paired[same_group & (paired["against"] == other)]
    beside = groups[(groups["objective"] == other) & (groups["setting"] == group["setting"])]["variant"]
    same = mine[mine["against_variant"].isin(beside)]
    if same.empty and mine["against_variant"].nunique() > 1:
        raise ValueError(f"{group['label']} has several groups of {other} beside it: name their sweep in beside=")
    return mine if same.empty else same


def with_beside(tables: Path, wanted: dict[str, str], groups: pd.DataFrame) -> pd.DataFrame:
    """The groups with those of the sweep that `beside=` names, as baselines of every setting of a sweep without."""
    if "beside" not in wanted:
        return groups
    others = groups_of(tables, {**wanted, "search": wanted["beside"]})
    named = [others.assign(setting=setting) for setting in dict.fromkeys(groups["setting"])]
    return pd.concat([groups, *(one[one["objective"] != "constrained"] for one in named)])


@dataclass(frozen=True)
class Side:
    """One side of a comparison of two groups whatever sets them apart: an arm of a sweep at one γ_train."""

    recipe: str
    variant: str
    label: str
    perturbation: str
    means: dict[float, float]
    """The mean metric over seeds at each noise level."""


def side(tables: Path, wanted: dict[str, str], name: str) -> Side | None:
    """The group called ARM@GAMMA_TRAIN, under Gaussian noise unless another is wanted; None without evaluated runs."""
    arm, _, gamma_train = name.partition("@")
    wanted = {"perturbation": "gaussian", **wanted, "gamma_train": gamma_train}
    groups = groups_of(tables, wanted)
    mine = groups[groups["arm"] == arm]
    if mine.empty:
        return None
    if len(mine) > 1:
        raise ValueError(f"{name} is {len(mine)} groups of runs: name the recipe or the sweep in the block")
    group = mine.iloc[0]
    curves = read(tables, "curves", wanted)
    curve = curves[(curves[GROUP] == group[GROUP]).all(axis=1)]
    means = dict(zip(curve["gamma"], curve["mean"], strict=True))
    return Side(
        group["recipe"], plain(group["variant"]), f"{arm}, γ_train = {gamma_train}", wanted["perturbation"], means
    )
