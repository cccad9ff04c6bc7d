"""The numbers of judged.csv: means of a run's completions, and how often those of a run are likelier than another's.

The report reads them, and does without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cudt.evaluation.intervals import wilson
from cudt.runs.run import Run

#: Completions that may be averaged: of the same instructions, with the same limit of tokens, at the same γ.
CONDITION = ["instructions", "max_new_tokens", "gamma"]
#: What completions that are compared share.
_PAIRED = [*CONDITION, "noise_seed", "number", "instruction", "judge"]


class Condition(NamedTuple):
    """What CONDITION names."""

    instructions: str
    max_new_tokens: int
    gamma: float


def judge_name(judge: Run) -> str:
    """What judged.csv calls a judge: `recipe/folder`."""
    return f"{judge.recipe.name}/{judge.label}"


@dataclass(frozen=True)
class WinRate:
    """The share of instructions that a run's completion wins, with Wilson's 95 % interval over instructions."""

    rate: float
    low: float
    high: float
    n: int
    """Number of instructions."""


@dataclass(frozen=True)
class CompletionMeans:
    """Means over the completions of a run; an empty completion has neither likelihood nor repetitions."""

    log_likelihood: float
    repeated: float
    tokens: float
    n_empty: int
    n: int


def means(rows: pd.DataFrame) -> dict[Condition, CompletionMeans]:
    """The means of a run's rows, by condition."""
    return {
        _condition(names): CompletionMeans(
            float(mine["log_likelihood"].mean()),
            float(mine["repeated"].mean()),
            float(mine["tokens"].mean()),
            int((mine["tokens"] == 0).sum()),
            len(mine),
        )
        for names, mine in rows.groupby(CONDITION)
    }


def wins(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """For each instruction that both runs answered under the same noise: 1 for a win of `ours`, 0 for a loss.

    The likelier completion wins, and an empty one loses against any other. A tie counts half, also of two empty ones.
    Several noise seeds of an instruction are averaged. Columns: those of CONDITION, `number` and `win`.
    """
    columns = [*_PAIRED, "log_likelihood"]
    both = ours[columns].merge(theirs[columns], on=_PAIRED, suffixes=("", "_theirs"))
    mine, other = (both[name].fillna(-np.inf) for name in ("log_likelihood", "log_likelihood_theirs"))
    won = both.assign(win=(mine > other) + 0.5 * (mine == other))
    return won.groupby([*CONDITION, "number"], as_index=False)["win"].mean()


def win_rates(ours: pd.DataFrame, theirs: pd.DataFrame) -> dict[Condition, WinRate]:
    """The win rate of one run's rows against another's, by condition."""
    found = {}
    for names, rows in wins(ours, theirs).groupby(CONDITION):
        rate = float(rows["win"].mean())
        # Ties make the wins vary less than a share of zeros and ones, so that the interval is rather too wide.
        low, high = wilson(rate, len(rows))
        found[_condition(names)] = WinRate(rate, low, high, len(rows))
    return found


def _condition(names: Any) -> Condition:
    instructions, tokens, gamma = names
    return Condition(str(instructions), int(tokens), float(gamma))
