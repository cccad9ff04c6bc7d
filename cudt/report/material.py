"""Everything that the page and its sections are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from cudt.report import headline
from cudt.report.collect import Collected, GroupKey, ReadRun
from cudt.report.figures.words import short
from cudt.report.groups import Group
from cudt.report.names import labels
from cudt.report.sweeps import ReadSweep
from cudt.report.text_table import TextTable


@dataclass(frozen=True)
class Material:
    """What a report found and wrote."""

    collected: Collected
    compared: list[ReadRun]
    """The runs that take part in comparisons: all but those of ablations."""
    groups: list[Group]
    summary: pd.DataFrame
    tables: list[tuple[TextTable, bool]]
    """Tables in the paper's layout, each with whether it has a number of ours."""
    sweeps: list[ReadSweep]

    def groups_of(self, runs: Iterable[ReadRun]) -> list[Group]:
        """The groups that some runs belong to."""
        keys = {run.group for run in runs}
        return [group for group in self.groups if group.key in keys]

    @cached_property
    def labels(self) -> dict[GroupKey, str]:
        """What the page calls each group."""
        return labels(self.collected.runs, short)

    @cached_property
    def comparisons(self) -> list[dict[str, Any]]:
        """The rows of the first table."""
        return headline.comparisons(self.compared, self.labels)
