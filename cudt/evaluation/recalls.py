"""How well each class is recognised under noise, and how far a classifier of two classes leans towards one of them.

Accuracy falls under noise for two reasons: the classes become harder to tell apart, or the classifier answers one class
too often. With z = Φ⁻¹, the hit rate H (recall of class 1) and the false-alarm rate F (1 − recall of class 0), signal
detection theory separates them:

    d′ = z(H) − z(F)            how far apart the classes are, in standard deviations of the logit
    bias c = −(z(H) + z(F))/2   how far the threshold is from the middle; positive: too many answers of class 0
    unbiased = Φ(d′/2)          the accuracy with the threshold in the middle

for classes of the same size whose logits are normal with the same variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from cudt.runs.tables import TABLES
from cudt.tasks.base import Task
from cudt.tasks.classification import Classification

if TYPE_CHECKING:
    from cudt.method.measurement import MeasuredExamples

_NORMAL = NormalDist()
#: Examples that are collated at once to read their classes.
_AT_ONCE = 64


class Detection(NamedTuple):
    """What a classifier of two classes knows, apart from which of them it prefers."""

    unbiased: float
    """Its accuracy with the threshold in the middle."""
    bias: float
    """c, in standard deviations of the logit."""


def detection(recall_0: float, n_0: int, recall_1: float, n_1: int) -> Detection:
    """Unbiased accuracy and bias from the recall of both classes and their numbers of examples.

    Half an example is added to each count, so that a recall of 0 or 1 has a finite z.
    """
    hit = _NORMAL.inv_cdf((recall_1 * n_1 + 0.5) / (n_1 + 1))
    false_alarm = _NORMAL.inv_cdf(1 - (recall_0 * n_0 + 0.5) / (n_0 + 1))
    return Detection(_NORMAL.cdf((hit - false_alarm) / 2), -(hit + false_alarm) / 2)


def recall_rows(
    task: Task, kind: str, seed: int, measured: Sequence[MeasuredExamples], levels: Sequence[float]
) -> pd.DataFrame:
    """The last layer's recall of each class at each level; no rows for tasks without classes."""
    rows = []
    if isinstance(task, Classification):
        labels = _test_labels(task)
        for gamma, level in zip(levels, measured, strict=True):
            last = level.last_layer()
            classes, scores = np.array([labels[one] for one in last.ids]), last.scores[0].numpy()
            for label in range(task.n_classes):
                mine = scores[classes == label]
                if len(mine):
                    rows.append((kind, gamma, seed, label, float(mine.mean()), len(mine)))
    return pd.DataFrame(rows, columns=TABLES["recalls"])


def _test_labels(task: Classification) -> dict[str, int]:
    """The class of each test example, by its id."""
    examples, found = task.examples("test"), dict[str, int]()
    for start in range(0, len(examples), _AT_ONCE):
        batch = task.collate([examples[number] for number in range(start, min(start + _AT_ONCE, len(examples)))])
        found |= dict(zip(batch["ids"], batch["labels"].tolist(), strict=True))
    return found
