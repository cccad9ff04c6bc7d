"""Do classifiers answer one class too often under noise? The recall of each class, and what the bias costs.

evaluation/recalls.py has the formulas of bias and unbiased accuracy, which need two classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from cudt.evaluation.recalls import detection
from cudt.noise.base import distribution
from cudt.report.collect import ReadRun
from cudt.report.groups import Group

COLUMNS = [
    *("recipe", "objective", "variant", "seed", "gamma_train", "perturbation", "gamma", "distribution"),
    *("accuracy", "recall_0", "recall_1", "unbiased", "bias"),
]


def table(runs: Sequence[ReadRun]) -> pd.DataFrame:
    """Recall of both classes, unbiased accuracy and bias of each run with two classes at each level."""
    rows = [row for run in runs for row in _rows(run)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(run: ReadRun) -> Iterator[dict[str, Any]]:
    recalls = recalls_of(run)
    if set(recalls["class"]) != {0, 1}:
        return
    names = {"recipe": run.recipe, "objective": run.objective, "variant": run.variant, "seed": run.seed}
    for (kind, gamma), level in recalls.groupby(["perturbation", "gamma"]):
        (zero, n_zero), (one, n_one) = level.sort_values("class")[["recall", "n"]].itertuples(index=False)
        found = detection(zero, n_zero, one, n_one)
        where = {"gamma_train": run.gamma_train, "perturbation": kind, "gamma": gamma}
        place = distribution(str(kind), float(str(gamma)), run.gamma_train)
        accuracy = (zero * n_zero + one * n_one) / (n_zero + n_one)
        numbers = {"distribution": place, "accuracy": accuracy, "recall_0": zero, "recall_1": one}
        yield {**names, **where, **numbers, **found._asdict()}


def recalls_of(run: ReadRun) -> pd.DataFrame:
    """The recall of each class at each level, averaged over noise seeds; empty for other tasks and earlier versions."""
    if not run.has_table("recalls"):
        return pd.DataFrame(columns=["perturbation", "gamma", "class", "recall", "n"])
    found = run.run.read_table("recalls")
    return found.groupby(["perturbation", "gamma", "class"], as_index=False)[["recall", "n"]].mean()


def with_recalls(groups: Sequence[Group], kind: str) -> list[Group]:
    """The groups whose runs all have recalls under a kind of noise."""
    return [group for group in groups if all(kind in set(recalls_of(run)["perturbation"]) for run in group.runs)]


def by_level(group: Group, kind: str) -> pd.DataFrame:
    """Mean and standard deviation over seeds of the recall of each class at each level."""
    rows = pd.concat([recalls_of(run) for run in group.runs])
    mine = rows[rows["perturbation"] == kind].groupby(["class", "gamma"], as_index=False)
    return mine.agg(mean=("recall", "mean"), std=("recall", "std"))
