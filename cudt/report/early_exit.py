"""Early exits of the runs of a group: the numbers of exits.csv on test data, over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from cudt.config.levels import GAMMA
from cudt.evaluation.exit_rules import RuleName
from cudt.noise import scale_of
from cudt.report.collect import ReadRun
from cudt.report.groups import Group


def has_exits(groups: Sequence[Group], kind: str) -> list[Group]:
    """The groups whose runs all have early exits under a kind of noise."""
    return [group for group in groups if all(not _tested(run, kind).empty for run in group.runs)]


def shown_levels(groups: Sequence[Group], kind: str) -> dict[float, str]:
    """Of the levels that all runs have, that of training and the highest, each with a note."""
    found = [set(_tested(run, kind)["gamma"]) for group in groups for run in group.runs]
    shared = set.intersection(*found) if found else set()
    if not shared:
        return {}
    # Only levels γ can equal γ_train: under noise in texts, which models are not trained on, the
    # level is 0.
    notes = {
        groups[0].level(kind): " (γ_train)" if scale_of(kind) == GAMMA else "",
        max(shared): "",
    }
    return {level: notes[level] for level in sorted(notes) if level in shared}


def by_point(group: Group, kind: str, level: float, rule: RuleName) -> pd.DataFrame:
    """Mean depth and accuracy at each operating point, from the shallowest; means and deviation
    over seeds.
    """
    rows = _per_run(group, kind, level, rule).groupby("point")
    return rows.agg(
        mean_depth=("mean_depth", "mean"),
        accuracy=("accuracy", "mean"),
        accuracy_std=("accuracy", "std"),
    )


def at_chosen(group: Group, kind: str, level: float, rule: RuleName) -> pd.Series[float]:
    """The means over seeds at the operating point that each run chose on its validation data.

    `accuracy`, `full_accuracy`, `mean_depth` and `share`, the FLOPs as a share of the full model's.
    """
    rows = _per_run(group, kind, level, rule)
    chosen = rows[rows["chosen"] == 1].assign(
        share=lambda table: table["flops"] / table["full_flops"]
    )
    return chosen[["accuracy", "full_accuracy", "mean_depth", "share"]].mean()


def _per_run(group: Group, kind: str, level: float, rule: RuleName) -> pd.DataFrame:
    """The rows of each run at each operating point, averaged over noise seeds."""
    parts = []
    for run in group.runs:
        rows = _tested(run, kind)
        mine = rows[(rows["gamma"] == level) & (rows["rule"] == rule)]
        parts.append(mine.groupby("point", as_index=False).mean(numeric_only=True))
    return pd.concat(parts, ignore_index=True)


def _tested(run: ReadRun, kind: str) -> pd.DataFrame:
    return run.exits[(run.exits["split"] == "test") & (run.exits["perturbation"] == kind)]
