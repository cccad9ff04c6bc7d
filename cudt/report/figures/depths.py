"""Which runs show the effect of depth: the groups that both figures of depth are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

from cudt.report import objectives
from cudt.report.figures.choose import CellChoice, choices
from cudt.report.groups import Group

#: By γ_train, then by objective: groups in the order of their depth.
Depths = dict[float, dict[str, list[Group]]]

_FEWEST_DEPTHS = 2


def depths(groups: Sequence[Group], kind: str) -> Depths:
    """The groups of each objective and γ_train that has at least two depths, at each depth those of
    the tables.
    """
    by_depth: dict[tuple[float, str], dict[int, CellChoice]] = {}
    # Of several comparisons at one depth, the last of these is the one that other figures show.
    for choice in sorted(choices(groups, kind), key=lambda choice: choice.worth(None)):
        for objective in choice.chosen:
            by_depth.setdefault((choice.cell.gamma_train, objective), {})[choice.cell.layers] = (
                choice
            )
    found: Depths = {}
    for level in sorted({level for level, _ in by_depth}):
        for objective in objectives.in_order(name for of, name in by_depth if of == level):
            ordered = [
                choice
                for _, choice in sorted(
                    by_depth[level, objective].items(), key=lambda item: item[0]
                )
            ]
            if len(ordered) >= _FEWEST_DEPTHS:
                found.setdefault(level, {})[objective] = [
                    choice.groups[objective] for choice in ordered
                ]
    return found
