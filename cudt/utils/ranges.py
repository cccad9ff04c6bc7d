"""Whole numbers in few characters."""

from __future__ import annotations

from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> str:
    """`1–3, 5`: the numbers in order, neighbours as a range."""
    groups: list[list[int]] = []
    for number in sorted(set(numbers)):
        if groups and groups[-1][-1] == number - 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(
        str(group[0]) if len(group) == 1 else f"{group[0]}–{group[-1]}" for group in groups
    )
