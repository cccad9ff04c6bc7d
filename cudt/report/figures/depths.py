"""Which runs show the effect of depth: the groups that both figures of depth are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

from cudt.report import objectives
from cudt.report.figures.choose import best, series, with_curve
from cudt.report.groups import Group

#: By γ_train, then by objective: groups in the order of their depth.
Depths = dict[float, dict[str, list[Group]]]

_FEWEST_DEPTHS = 2


def depths(groups: Sequence[Group], kind: str) -> Depths:
    """The groups of each objective and γ_train that has at least two depths.

    Groups that differ in nothing but their depth where there are such, else the best group of each depth.
    """
    found: Depths = {}
    for level in sorted({group.gamma_train for group in groups}):
        for objective in objectives.in_order(group.objective for group in groups):
            mine = [group for group in groups if (group.gamma_train, group.objective) == (level, objective)]
            ordered = series(mine, "model.layers", kind)
            if len(ordered) < _FEWEST_DEPTHS:
                ordered = _best_of_each_depth(mine, kind)
            if len(ordered) >= _FEWEST_DEPTHS:
                found.setdefault(level, {})[objective] = ordered
    return found


def _best_of_each_depth(groups: Sequence[Group], kind: str) -> list[Group]:
    evaluated = with_curve(groups, kind)
    layers = sorted({group.n_layers for group in evaluated})
    return [best([group for group in evaluated if group.n_layers == count], kind) for count in layers]
