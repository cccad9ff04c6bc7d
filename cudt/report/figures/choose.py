"""Which groups a figure shows: the pair that is compared, the series of one setting, the levels in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cudt.report import objectives
from cudt.report.comparable import ComparableCell
from cudt.report.groups import Group

#: How `pair` chooses, for the captions of figures.
CHOSEN = "highest γ_train that both objectives have, then most seeds, then lowest validation loss"

#: Settings that have figures of their own, so that no ablation is drawn of them.
_NOT_ABLATED = ("noise.gamma_train", "model.layers")
_FEWEST_VALUES = 3


def noise_kinds(groups: Sequence[Group]) -> list[str]:
    """Every kind of noise that one of the groups was evaluated under."""
    return sorted({kind for group in groups for kind in group.kinds})


def main_kind(groups: Sequence[Group]) -> str | None:
    """The kind of noise that a recipe is shown under: that of training, else the first evaluated; None without any."""
    kinds = noise_kinds(groups)
    trained = [group.settings["noise.kind"] for group in groups if group.settings["noise.kind"] in kinds]
    return trained[0] if trained else min(kinds, default=None)


def with_curve(groups: Iterable[Group], kind: str) -> list[Group]:
    """The groups that were evaluated under a kind of noise."""
    return [group for group in groups if kind in group.kinds]


def best(groups: Sequence[Group], kind: str) -> Group:
    """The group with most seeds; of several, the one with the lowest validation loss. Test data are not looked at."""
    return min(groups, key=lambda group: (-group.seeds(kind), group.validation_loss))


def pair(groups: Sequence[Group], kind: str) -> list[Group]:
    """One group of each objective, all of one cell (../comparable.py), so that their lines can be compared.

    The highest γ_train at which a constrained objective and the baseline were both trained; then most seeds, then most
    layers. If they share no γ_train, the highest of all. The constrained objective comes first, then the baseline.
    """
    trained: dict[ComparableCell, dict[str, list[Group]]] = {}
    for group in with_curve(groups, kind):
        by_objective = trained.setdefault(group.cell, {})
        by_objective.setdefault(group.objective, []).append(group)
    if not trained:
        return []

    def worth(cell: ComparableCell) -> tuple[Any, ...]:
        by_objective = trained[cell]
        fewest_seeds = min(best(found, kind).seeds(kind) for found in by_objective.values())
        return (_is_comparison(by_objective), cell.gamma_train, fewest_seeds, cell.layers)

    chosen = trained[max(trained, key=worth)]
    return [best(chosen[objective], kind) for objective in objectives.in_order(chosen)]


def _is_comparison(names: Iterable[str]) -> bool:
    return objectives.BASELINE in names and any(objectives.is_constrained(name) for name in names)


def few(groups: Sequence[Group], kind: str, most: int) -> list[Group]:
    """All groups with a curve, or the pair where there are more than `most`."""
    drawn = with_curve(groups, kind)
    return drawn if len(drawn) <= most else pair(drawn, kind)


def series(groups: Sequence[Group], key: str, kind: str) -> list[Group]:
    """Groups of one objective that differ in one numeric setting only, sorted by its value.

    Of several such series, the one with most values, then most seeds. Of groups with the same value, the best.
    """
    found: dict[Any, dict[float, list[Group]]] = {}
    for group in with_curve(groups, kind):
        value = group.settings.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            others = frozenset(item for item in group.settings.items() if item[0] != key)
            found.setdefault((group.objective, others), {}).setdefault(value, []).append(group)
    each = [[best(mine, kind) for _, mine in sorted(values.items())] for values in found.values()]
    return max(each, key=lambda mine: (len(mine), sum(group.seeds(kind) for group in mine)), default=[])


def ablated(groups: Sequence[Group], kind: str) -> dict[str, list[Group]]:
    """The settings with at least three values, all else equal, among constrained groups; each with its groups.

    Only where the groups were evaluated at a noise level in common.
    """
    constrained = [group for group in groups if objectives.is_constrained(group.objective)]
    keys = dict.fromkeys(key for group in constrained for key in group.settings if key not in _NOT_ABLATED)
    found = {key: series(constrained, key, kind) for key in keys if _has_values(constrained, key)}
    return {key: mine for key, mine in found.items() if len(mine) >= _FEWEST_VALUES and middle_levels(mine, kind)}


def _has_values(groups: Sequence[Group], key: str) -> bool:
    """Cheaper than looking for a series, and false for nearly all settings."""
    return len({group.settings.get(key) for group in groups}) >= _FEWEST_VALUES


def middle_levels(groups: Sequence[Group], kind: str) -> list[float]:
    """The lowest, a middle and a high noise level that all groups have: 0, 1.05 and 1.65 (as the paper) by default."""
    shared = set.intersection(*(set(group.curve(kind)["gamma"]) for group in groups))
    if not shared:
        return []
    highest = max(shared)
    wanted = (min(shared), highest * 1.05 / 2.1, highest * 1.65 / 2.1)
    return sorted({min(shared, key=lambda level: (abs(level - goal), level)) for goal in wanted})
