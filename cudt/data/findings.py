"""How many examples of a split have a problem, and the warning about it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cudt.utils.errors import DataWarning

#: A larger share of examples or tokens is worth a warning.
_NOTABLE = 0.03


@dataclass(frozen=True)
class Finding:
    """How many examples, or tokens, have a problem."""

    name: str
    """As in run.json: `empty texts`."""
    count: int
    total: int
    of: str = "examples"

    @property
    def share(self) -> float:
        return self.count / self.total if self.total else 0.0


def report(what: str, findings: Iterable[Finding]) -> dict[str, int]:
    """Warn of the notable findings in a split, and return their counts for run.json."""
    notable = [finding for finding in findings if finding.share > _NOTABLE]
    if notable:
        parts = [f"{one.name}: {one.count} of {one.total} {one.of} ({one.share:.0%})" for one in notable]
        warnings.warn(f"{what} data: {'; '.join(parts)}", DataWarning, stacklevel=2)
    return {f"{what}: {one.name}": one.count for one in notable}


def missing_classes(labels: Sequence[int], n_classes: int) -> Finding:
    """Classes without an example, so that nothing is known about them."""
    return Finding("classes without an example", n_classes - len(set(labels)), n_classes, "classes")


def lonely_classes(labels: Sequence[int]) -> Finding:
    """Classes with one example only: a column of ids or numbers is not one of labels."""
    counts = Counter(labels)
    return Finding("classes with one example", sum(count == 1 for count in counts.values()), len(counts), "classes")
