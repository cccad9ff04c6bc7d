"""Names of groups of runs in tables, figures and the page: by what sets them apart, never by a hash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from cudt.config.differences import Settings, names_apart, without_descent
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.comparable import by_group
from cudt.report.objectives import BASELINE
from cudt.report.objectives import labels as objective_labels


def labels(runs: Sequence[ReadRun], shorten: Callable[[str], str] = str) -> dict[GroupKey, str]:
    """A name for each group, like `constrained α=0.3`: the objective and, of several variants, what sets it apart.

    Variants are set apart from those of the same recipe and objective. `shorten` is applied to what sets them apart.
    """
    variants: dict[tuple[str, str], list[ReadRun]] = {}
    for group in by_group(runs).values():
        variants.setdefault((group[0].recipe, group[0].objective), []).append(group[0])
    objectives = objective_labels({objective for _, objective in variants})
    named = {}
    for (_, objective), mine in variants.items():
        names = distinct([shorten(apart) for apart in variant_names(objective, [run.settings for run in mine])])
        for run, apart in zip(mine, names, strict=True):
            named[run.group] = f"{objectives[objective]} {apart}".strip()
    return named


def variant_names(objective: str, variants: Sequence[Settings]) -> list[str]:
    """What sets the variants of an objective apart; for ERM, settings of the constraints only if no others do."""
    if objective == BASELINE:
        own = [without_descent(settings) for settings in variants]
        if len({frozenset(settings.items()) for settings in own}) == len(own):
            return names_apart(own)
    return names_apart(variants)


def distinct(names: Sequence[str]) -> list[str]:
    """Number the names that shortening made equal."""
    counts = Counter(names)
    seen: Counter[str] = Counter()
    made = []
    for name in names:
        seen[name] += 1
        made.append(f"{name} #{seen[name]}" if counts[name] > 1 else name)
    return made
