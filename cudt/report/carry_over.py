"""How far descent carries over to noise: the numbers of descent.csv, over the seeds of a group."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from cudt.report.collect import ReadRun
from cudt.report.groups import Group


def has_descent(groups: Sequence[Group], kind: str) -> list[Group]:
    """The groups whose runs all have a summary of their constraints under a kind of noise."""
    return [group for group in groups if all(kind in set(run.descent["perturbation"]) for run in group.runs)]


def by_level(runs: Sequence[ReadRun], kind: str, name: str) -> pd.DataFrame:
    """A number about the whole model: `mean` and `std` over the runs, indexed by the levels that all of them have."""
    rows = pd.concat([run.descent for run in runs])
    mine = rows[(rows["layer"] == 0) & (rows["perturbation"] == kind) & (rows["name"] == name)]
    found = mine.groupby("gamma")["value"].agg(["mean", "std", "size"])
    return found[found["size"] == len(runs)][["mean", "std"]]
