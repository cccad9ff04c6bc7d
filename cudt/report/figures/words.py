"""What figures call groups of runs, noise levels and numbers of seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from cudt.noise import scale_of
from cudt.report import objectives
from cudt.report.collect import GroupKey
from cudt.report.comparable import constraint_kind
from cudt.report.figures.choose import is_comparison
from cudt.report.figures.style import variant_style
from cudt.report.groups import Group
from cudt.report.names import distinct, variant_names

#: Characters in one line of a legend, and lines of one label.
_LABEL_WIDTH, _LABEL_LINES = 60, 3


def labels(
    groups: Sequence[Group],
    kind: str,
    *,
    counts: bool = True,
    written: Callable[[str], str] | None = None,
) -> dict[GroupKey, str]:
    """The label of each group: its objective, what sets it apart, its kind of constraints and its
    number of seeds.

    `written` shortens and escapes the settings; by default for a legend.
    """
    written = written or legend_text
    called = objectives.labels(group.objective for group in groups)
    named = {}
    for objective, text in called.items():
        mine = [group for group in groups if group.objective == objective]
        names = distinct(
            [written(name) for name in variant_names(objective, [group.settings for group in mine])]
        )
        methods = {constraint_kind(group.runs[0]) for group in mine}
        # Where they differ, the names say it.
        method = methods.pop() if len(methods) == 1 else ""
        for group, name in zip(mine, names, strict=True):
            notes = [method] * bool(method) + [how_many(group, kind)] * counts
            named[group.key] = (
                text + (f" {name}" if name else "") + (f" ({', '.join(notes)})" if notes else "")
            )
    return {group.key: named[group.key] for group in groups}


def styles(groups: Sequence[Group]) -> dict[GroupKey, dict[str, Any]]:
    """The line style of each group: its objective's, in shades where that has several variants."""
    made = {}
    for objective in dict.fromkeys(group.objective for group in groups):
        mine = [group for group in groups if group.objective == objective]
        for index, group in enumerate(mine):
            made[group.key] = variant_style(objective, index, len(mine))
    return made


def chosen_text(
    shown: Sequence[Group], available: Sequence[Group], gamma_train: float | None = None
) -> str:
    """How the groups that are shown were chosen, for a caption; `gamma_train` is that of the
    paper's figure.
    """
    notes = []
    if len(shown) < len(available):
        notes.append(f"{len(shown)} of {len(available)} variants, those of the first table")
    levels = {group.gamma_train for group in available}
    if gamma_train is not None and shown:
        notes += _about_level(shown, gamma_train, n_levels=len(levels))
    elif len(levels) > 1 and len({group.gamma_train for group in shown}) == 1:
        notes.append(f"γ_train = {shown[0].gamma_train:g}")
    return f" ({'; '.join(notes)})" if notes else ""


def _about_level(shown: Sequence[Group], wanted: float, n_levels: int) -> list[str]:
    """Whether the groups were trained at the level of the paper's figure."""
    own = shown[0].gamma_train
    if own == wanted:
        return [f"γ_train = {own:g} as in the paper"] if n_levels > 1 else []
    highest = f", the highest{_that_all_have(shown)}" if n_levels > 1 else ""
    return [f"γ_train = {own:g}{highest}; the paper's figure has {wanted:g}"]


def _that_all_have(shown: Sequence[Group]) -> str:
    return (
        " that both objectives have" if is_comparison([group.objective for group in shown]) else ""
    )


def level_text(kind: str, groups: Sequence[Group]) -> str:
    """The highest noise levels that groups saw in training: `γ = 0.4`."""
    levels = sorted({group.level(kind) for group in groups})
    return f"{scale_of(kind).symbol} = " + ", ".join(f"{level:g}" for level in levels)


def how_many(group: Group, kind: str) -> str:
    """The number of runs behind a line: `3 seeds`, or `best of 5`."""
    return f"best of {group.best_of}" if group.best_of else seeds_text(group.seeds(kind))


def seeds_of_each(groups: Sequence[Group], kind: str) -> str:
    """The number of runs of each objective, where each has one group: `3 seeds each`, or `best of 5
    constrained, …`.
    """
    counts = {how_many(group, kind) for group in groups}
    if len(counts) == 1:
        return counts.pop() + (" each" if len(groups) > 1 else "")
    called = objectives.labels(group.objective for group in groups)
    return ", ".join(f"{how_many(group, kind)} {called[group.objective]}" for group in groups)


def seeds_range(groups: Sequence[Group], kind: str) -> str:
    """The number of runs behind each line of a figure: `3 seeds`, `1 to 3 seeds`, or `best of
    5`.
    """
    counts = sorted({group.seeds(kind) for group in groups if not group.best_of})
    selected = sorted({group.best_of for group in groups if group.best_of})
    texts = (
        [seeds_text(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"]
        if counts
        else []
    )
    if selected:
        texts.append(
            f"best of {selected[0]}" + (f" to {selected[-1]}" if len(selected) > 1 else "")
        )
    return " or ".join(texts)


def seeds_text(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def legend_text(text: str) -> str:
    """A user's text in a legend: wrapped, cut after three lines, and never read as a formula."""
    lines = textwrap.wrap(text, _LABEL_WIDTH, max_lines=_LABEL_LINES, placeholder=" …")
    return "\n".join(lines).replace("$", r"\$")


def plain(text: str) -> str:
    """A user's text in one line of a figure, cut where it is long, and never read as a formula."""
    return short(text).replace("$", r"\$")


def short(text: str) -> str:
    """A user's text in one line, cut after 60 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:59] + "…"
