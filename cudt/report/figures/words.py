"""What groups, settings and levels are called in figures, and how groups are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudt.config.differences import names_apart
from cudt.noise.base import scale_of
from cudt.report.figures.choose import CHOSEN
from cudt.report.figures.style import plain, seeds_text, variant_style
from cudt.report.groups import Group, Key


def labels(
    groups: Sequence[Group], kind: str, *, counts: bool = True, written: Callable[[str], str] = plain
) -> dict[Key, str]:
    """What each group is called beside the others: its objective, what sets it apart, how many seeds it has."""
    named = {}
    for objective in dict.fromkeys(group.objective for group in groups):
        mine = [group for group in groups if group.objective == objective]
        for group, apart in zip(mine, names_apart([one.settings for one in mine]), strict=True):
            seeds = f" ({seeds_text(group.seeds(kind))})" if counts else ""
            named[group.key] = objective + (f" {written(apart)}" if apart else "") + seeds
    return named


def styles(groups: Sequence[Group]) -> dict[Key, dict[str, Any]]:
    made = {}
    for objective in dict.fromkeys(group.objective for group in groups):
        mine = [group for group in groups if group.objective == objective]
        for place, group in enumerate(mine):
            made[group.key] = variant_style(objective, place, len(mine))
    return made


def chosen_text(shown: Sequence[Group], of: Sequence[Group]) -> str:
    """How some groups were chosen of many; nothing where all are shown."""
    return "" if len(shown) == len(of) else f" ({len(shown)} of {len(of)} variants: {CHOSEN})"


def level_text(kind: str, groups: Sequence[Group]) -> str:
    """At which levels of training groups are shown."""
    levels = sorted({group.level(kind) for group in groups})
    return f"{scale_of(kind).symbol} = " + ", ".join(f"{level:g}" for level in levels)


def seeds_of_each(groups: Sequence[Group], kind: str) -> str:
    """How many seeds each objective has, of one group each."""
    counts = {group.seeds(kind) for group in groups}
    if len(counts) == 1:
        return seeds_text(*counts) + (" each" if len(groups) > 1 else "")
    return "seeds: " + ", ".join(f"{group.seeds(kind)} {group.objective}" for group in groups)


def counted(groups: Sequence[Group], kind: str) -> str:
    """How many seeds stand behind each line of a figure."""
    counts = sorted({group.seeds(kind) for group in groups})
    return seeds_text(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
