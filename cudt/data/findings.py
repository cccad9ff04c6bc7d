"""What is wrong with the examples of a split: how many have a problem, and the warning about it."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from cudt.utils.errors import DataWarning

#: A larger share of examples or tokens is worth a warning.
_NOTABLE = 0.03


@dataclass(frozen=True)
class Finding:
    """How many examples, or tokens, have a problem."""

    name: str
    """As in run.json: `unknown words`."""
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
        parts = [
            f"{one.name}: {one.count} of {one.total} {one.of} ({one.share:.0%})" for one in notable
        ]
        warnings.warn(f"{what} data: {'; '.join(parts)}", DataWarning, stacklevel=2)
    return {f"{what}: {one.name}": one.count for one in notable}


def leaked(
    found: Sequence[Hashable], training: Iterable[Hashable], of: str = "examples"
) -> Finding:
    """Examples that are also in the training data."""
    known = set(training)
    return Finding(
        f"{of} that are also in the training data",
        sum(one in known for one in found),
        len(found),
        of,
    )
