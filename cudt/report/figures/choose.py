"""Which groups a figure shows: the comparison, by the rule of the tables; the series of one
setting; common levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cudt.report import compare, objectives
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.comparable import (
    CONSTRAINED,
    SIDES,
    ComparableCell,
    by_cell,
    matched_settings,
    matches,
    model_settings,
)
from cudt.report.compare import Chosen, criterion
from cudt.report.groups import Group
from cudt.report.published import is_published

#: γ_train of the paper's Figure 1, its main results on video and Llama, by metric: what figures of
#: one recipe show.
PAPER_LEVELS = {"accuracy": 0.2, "RMSE": 0.13, "token accuracy": 0.25}
#: Settings that have figures of their own, so that no ablation is drawn of them.
_NOT_ABLATED = ("noise.gamma_train", "model.layers")
_FEWEST_VALUES = 3


def noise_kinds(groups: Sequence[Group]) -> list[str]:
    """Every kind of noise that one of the groups was evaluated under."""
    return sorted({kind for group in groups for kind in group.kinds})


def main_kind(groups: Sequence[Group]) -> str | None:
    """The kind of noise that a recipe is shown under: that of training, else the first evaluated;
    None without any.
    """
    kinds = noise_kinds(groups)
    trained = [
        group.settings["noise.kind"] for group in groups if group.settings["noise.kind"] in kinds
    ]
    return trained[0] if trained else min(kinds, default=None)


def with_curve(groups: Iterable[Group], kind: str) -> list[Group]:
    """The groups that were evaluated under a kind of noise."""
    return [group for group in groups if kind in group.kinds]


# ---------------------------------------------------------------- comparisons, by the rule of the
# tables


@dataclass(frozen=True)
class CellChoice:
    """The runs that represent each objective of a cell, as a row of the page's first table compares
    them.
    """

    cell: ComparableCell
    chosen: Mapping[str, Chosen]
    """By objective."""
    scores: Mapping[str, float]
    """Of each objective on validation data, the lower the better."""
    is_published: bool
    """Whether constrained and ERM are the paper's, which may have different model settings."""
    is_same_model: bool
    all_groups: Mapping[GroupKey, Group]
    """The groups that were chosen from."""

    @property
    def is_comparison(self) -> bool:
        return is_comparison(self.chosen)

    @cached_property
    def groups(self) -> dict[str, Group]:
        """By objective; a run that was selected is a group of its own."""
        return {name: _as_group(one, self.all_groups) for name, one in self.chosen.items()}

    def worth(self, gamma_train: float | None) -> tuple[Any, ...]:
        """Sorts choices; the depth comes last, by its score."""
        score = self.scores.get(CONSTRAINED, min(self.scores.values()))
        cell = self.cell
        kind = (
            self.is_comparison,
            cell.gamma_train == gamma_train,
            cell.gamma_train,
            self.is_published,
        )
        return (*kind, self.is_same_model, -score, cell.layers)

    def is_like(self, other: CellChoice) -> bool:
        """Whether they differ in nothing but their depth."""
        own = (self.is_comparison, self.is_published, self.is_same_model)
        is_same_cell = replace(self.cell, layers=0) == replace(other.cell, layers=0)
        return is_same_cell and own == (
            other.is_comparison,
            other.is_published,
            other.is_same_model,
        )


def pair(groups: Sequence[Group], kind: str, gamma_train: float | None = None) -> list[Group]:
    """One group of each objective, all of one cell (../comparable.py): a row of the page's first
    table.

    At `gamma_train`, by default that of the paper's Figure 1, or else at the highest at which a
    constrained objective and the baseline were both trained; of several depths, the one whose
    constrained runs are best on validation data. If there is no comparison, the highest γ_train of
    all. The constrained objective comes first, then the baseline.
    """
    every = choices(groups, kind)
    if not every:
        return []
    wanted = PAPER_LEVELS.get(groups[0].metric) if gamma_train is None else gamma_train
    return _in_order(max(every, key=lambda choice: choice.worth(wanted)).groups)


def best_depths(groups: Sequence[Group], kind: str, gamma_train: float | None) -> list[Group]:
    """The same at another level of the paper, and each objective at its own best depth, as in the
    paper's grids.
    """
    every = choices(groups, kind)
    found = max(every, key=lambda choice: choice.worth(gamma_train), default=None)
    if found is None:
        return []
    alike = [choice for choice in every if choice.is_like(found)]
    best = {
        name: min(
            (one for one in alike if name in one.chosen), key=lambda one: one.scores[name]
        ).groups[name]
        for name in found.chosen
    }
    return _in_order(best)


def choices(groups: Sequence[Group], kind: str) -> list[CellChoice]:
    """Each comparison of each cell under a kind of noise, and each cell without a comparison.

    Where the best run of an objective is not evaluated, the objective is missing, as in the tables;
    where that leaves nothing, the best of the evaluated runs are taken.
    """
    by_key = {group.key: group for group in groups}
    runs = [run for group in groups for run in group.runs]
    return _choices(runs, kind, by_key) or _choices(
        [run for run in runs if run.curves.get(kind)], kind, by_key
    )


def _choices(
    runs: Sequence[ReadRun], kind: str, by_key: Mapping[GroupKey, Group]
) -> list[CellChoice]:
    rank = criterion(runs)
    made = []
    for cell, mine in by_cell(runs).items():
        for rivals in [_with_others(match, mine) for match in matches(mine)] or [mine]:
            chosen = compare.choose(rivals, kind)
            shown = {name: one for name, one in chosen.items() if one.runs}
            if shown:
                scores = {
                    name: sum(map(rank, one.runs)) / len(one.runs) for name, one in shown.items()
                }
                made.append(CellChoice(cell, shown, scores, *_origin(shown.values()), by_key))
    return made


def _with_others(match: Sequence[ReadRun], cell: Sequence[ReadRun]) -> list[ReadRun]:
    """The runs of a match, and those of other objectives: with the same `matched_settings`, or all
    where none has.
    """
    matched = {matched_settings(run) for run in match}
    others = [run for run in cell if run.objective not in SIDES]
    return [*match, *([run for run in others if matched_settings(run) in matched] or others)]


def _origin(shown: Iterable[Chosen]) -> tuple[bool, bool]:
    """Whether constrained and ERM runs are published, and whether they share their model
    settings.
    """
    compared = [run for one in shown for run in one.runs if run.objective in SIDES]
    is_paper = bool(compared) and all(map(is_published, compared))
    return is_paper, len(set(map(model_settings, compared))) < 2


def _as_group(chosen: Chosen, by_key: Mapping[GroupKey, Group]) -> Group:
    group = by_key[chosen.runs[0].group]
    if not chosen.best_of:
        return group
    return replace(group.alone(chosen.runs[0]), best_of=chosen.best_of)


def _in_order(groups: Mapping[str, Group]) -> list[Group]:
    return [groups[name] for name in objectives.in_order(groups)]


def is_comparison(names: Iterable[str]) -> bool:
    """Whether a constrained objective and the baseline are among the objectives."""
    return objectives.BASELINE in names and any(objectives.is_constrained(name) for name in names)


# ---------------------------------------------------------------- ablations


def series(groups: Sequence[Group], key: str, kind: str) -> list[Group]:
    """Groups of one objective that differ in one numeric setting only, sorted by its value.

    Of several such series, the one with most values, then most seeds.
    """
    found: dict[Any, dict[float, Group]] = {}
    for group in with_curve(groups, kind):
        value = group.settings.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            others = frozenset(item for item in group.settings.items() if item[0] != key)
            found.setdefault((group.objective, others), {})[value] = group
    each = [[group for _, group in sorted(values.items())] for values in found.values()]
    return max(
        each, key=lambda mine: (len(mine), sum(group.seeds(kind) for group in mine)), default=[]
    )


def ablated(groups: Sequence[Group], kind: str) -> dict[str, list[Group]]:
    """The settings with at least three values, all else equal, among constrained groups; each with
    its groups.

    Only where the groups were evaluated at a noise level in common.
    """
    constrained = [group for group in groups if objectives.is_constrained(group.objective)]
    keys = dict.fromkeys(
        key for group in constrained for key in group.settings if key not in _NOT_ABLATED
    )
    found = {key: series(constrained, key, kind) for key in keys if _has_values(constrained, key)}
    return {
        key: mine
        for key, mine in found.items()
        if len(mine) >= _FEWEST_VALUES and middle_levels(mine, kind)
    }


def _has_values(groups: Sequence[Group], key: str) -> bool:
    """Cheaper than looking for a series, and false for nearly all settings."""
    return len({group.settings.get(key) for group in groups}) >= _FEWEST_VALUES


def middle_levels(groups: Sequence[Group], kind: str) -> list[float]:
    """The lowest, a middle and a high noise level that all groups have: 0, 1.05 and 1.65 (as the
    paper) by default.
    """
    shared = set.intersection(*(set(group.curve(kind)["gamma"]) for group in groups))
    if not shared:
        return []
    highest = max(shared)
    wanted = (min(shared), highest * 1.05 / 2.1, highest * 1.65 / 2.1)
    return sorted({min(shared, key=lambda level: (abs(level - goal), level)) for goal in wanted})
