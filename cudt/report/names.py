"""Names of groups of runs in tables, figures and the page: by what sets them apart, never by a
hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from cudt.config.differences import Settings, names_apart, without_descent
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.comparable import PAPER_KIND, by_group, constraint_kind
from cudt.report.objectives import BASELINE
from cudt.report.objectives import labels as objective_labels


def labels(runs: Sequence[ReadRun], shorten: Callable[[str], str] = str) -> dict[GroupKey, str]:
    """A name for each group, like `constrained (ladder) α=0.3`: the objective, and what sets its
    variants apart.

    Variants are set apart from those of the same recipe and objective: by the kind of their
    constraints, if they are of several kinds, and by other settings. `shorten` is applied to the
    latter.
    """
    variants: dict[tuple[str, str], list[ReadRun]] = {}
    for group in by_group(runs).values():
        variants.setdefault((group[0].recipe, group[0].objective), []).append(group[0])
    objectives = objective_labels({objective for _, objective in variants})
    named = {}
    for (_, objective), mine in variants.items():
        texts = distinct([_told_apart(*told) for told in _apart(objective, mine, shorten)])
        for run, text in zip(mine, texts, strict=True):
            named[run.group] = f"{objectives[objective]} {text}".strip()
    return named


def _apart(
    objective: str, runs: Sequence[ReadRun], shorten: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """The kind of each run's constraints, empty if all have one, and what else sets its settings
    apart.
    """
    kinds = [constraint_kind(run) for run in runs]
    if len({*kinds}) == 1:
        names = variant_names(objective, [run.settings for run in runs])
        yield from (("", shorten(name)) for name in names)
        return
    others = [
        {key: value for key, value in run.settings.items() if key not in PAPER_KIND} for run in runs
    ]
    different = [one for index, one in enumerate(others) if one not in others[:index]]
    names = variant_names(objective, different)
    yield from (
        (kind, shorten(names[different.index(one)]))
        for kind, one in zip(kinds, others, strict=True)
    )


def _told_apart(kind: str, settings: str) -> str:
    return f"({kind}) {settings}".strip() if kind else settings


def variant_names(objective: str, variants: Sequence[Settings]) -> list[str]:
    """What sets the variants of an objective apart; for ERM, settings of the constraints only if no
    others do.
    """
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
