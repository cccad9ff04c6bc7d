"""Which groups are shown where there are more than a panel holds, and which make up a series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cudt.report.figures.style import STYLES
from cudt.report.groups import Group

#: How `pair` chooses, in words.
CHOSEN = "highest γ_train of both objectives, then most seeds, then lowest validation loss"


def main_kind(groups: Sequence[Group]) -> str | None:
    """The noise of training where there are curves of it, else another; None without a curve."""
    kinds = {kind for group in groups for kind in group.kinds}
    trained = [group.settings["noise.kind"] for group in groups if group.settings["noise.kind"] in kinds]
    return trained[0] if trained else min(kinds, default=None)


def with_curve(groups: Iterable[Group], kind: str) -> list[Group]:
    return [group for group in groups if kind in group.kinds]


def best(groups: Sequence[Group], kind: str) -> Group:
    """The one with most seeds; of these, that with the lowest validation loss: test data have no part in it."""
    return min(groups, key=lambda group: (-group.seeds(kind), group.validation_loss))


def pair(groups: Sequence[Group], kind: str) -> list[Group]:
    """One group of each objective, trained at one level with one depth, that lines may be compared.

    The highest γ_train that constrained and ERM both have; then most seeds, then most layers. Without such a pair,
    the highest γ_train there is.
    """
    places: dict[tuple[float, int], dict[str, list[Group]]] = {}
    for group in with_curve(groups, kind):
        objectives = places.setdefault((group.gamma_train, group.n_layers), {})
        objectives.setdefault(group.objective, []).append(group)
    if not places:
        return []

    def worth(place: tuple[float, int]) -> tuple[Any, ...]:
        chosen = [best(found, kind) for found in places[place].values()]
        both = {"constrained", "erm"} <= set(places[place])
        return (both, place[0], min(group.seeds(kind) for group in chosen), place[1])

    chosen = places[max(places, key=worth)]
    return [best(chosen[objective], kind) for objective in STYLES if objective in chosen]


def few(groups: Sequence[Group], kind: str, most: int) -> list[Group]:
    """All groups with a curve, or where those are more than can be told apart, the pair."""
    drawn = with_curve(groups, kind)
    return drawn if len(drawn) <= most else pair(drawn, kind)


def series(groups: Sequence[Group], key: str, kind: str) -> list[Group]:
    """Groups of one objective with a curve that differ in one setting alone, in its order.

    Of several such series the one with most values, then that with most seeds; numbers only. Of groups with one value,
    which differ in their hash alone, the best.
    """
    found: dict[Any, dict[float, list[Group]]] = {}
    for group in with_curve(groups, kind):
        value = group.settings.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            others = frozenset(item for item in group.settings.items() if item[0] != key)
            found.setdefault((group.objective, others), {}).setdefault(value, []).append(group)
    each = [[best(mine, kind) for _, mine in sorted(values.items())] for values in found.values()]
    return max(each, key=lambda mine: (len(mine), sum(group.seeds(kind) for group in mine)), default=[])


def middle_levels(groups: Sequence[Group], kind: str) -> list[float]:
    """The lowest, a middle and a high level that all groups have: of the default grid the paper's 0, 1.05 and 1.65."""
    shared = set.intersection(*(set(group.curve(kind)["gamma"]) for group in groups))
    if not shared:
        return []
    highest = max(shared)
    wanted = (min(shared), highest * 1.05 / 2.1, highest * 1.65 / 2.1)
    return sorted({min(shared, key=lambda level: (abs(level - goal), level)) for goal in wanted})
