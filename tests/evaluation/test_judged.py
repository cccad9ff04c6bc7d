from __future__ import annotations

import math

import pandas as pd

from cudt.evaluation import intervals, judged
from cudt.evaluation.judged import CompletionMeans, Condition
from cudt.runs.tables import TABLES

CONDITION = Condition("ask", 8, 1.5)


def rows(*likelihoods: float, seed: int = 0, gamma: float = 1.5, judge: str = "alpaca/erm-1") -> pd.DataFrame:
    """Judged completions of instructions 1, 2, …; nan stands for an empty one."""
    return pd.DataFrame(
        [
            ("ask", gamma, seed, 8, number, f"{number:08x}", "0", judge, 0 if math.isnan(one) else 5, one, 0.5)
            for number, one in enumerate(likelihoods, 1)
        ],
        columns=TABLES["judged"],
    )


def test_the_likelier_completion_wins_and_a_tie_counts_half():
    found = judged.wins(rows(-1.0, -2.0, -3.0), rows(-2.0, -2.0, -1.0))
    assert found["win"].tolist() == [1.0, 0.5, 0.0]


def test_an_empty_completion_loses_against_any_other_and_ties_with_an_empty_one():
    found = judged.wins(rows(math.nan, -99.0, math.nan), rows(-99.0, math.nan, math.nan))
    assert found["win"].tolist() == [0.0, 1.0, 0.5]


def test_only_instructions_that_both_runs_answered_are_compared():
    shorter, other = rows(-1.0), rows(-2.0, -2.0, -2.0)
    assert judged.win_rates(shorter, other)[CONDITION].n == 1
    # The same file name, another text.
    renamed = other.assign(instruction="ffffffff")
    assert judged.win_rates(shorter, renamed) == {}
    assert judged.win_rates(shorter, rows(-2.0, gamma=1.0)) == {}
    assert judged.win_rates(shorter, rows(-2.0, judge="alpaca/erm-2")) == {}


def test_the_interval_is_wilsons_over_instructions_and_noise_seeds_are_averaged():
    ours = pd.concat([rows(-1.0, -1.0, -1.0, -3.0), rows(-1.0, -3.0, -1.0, -3.0, seed=1)])
    theirs = pd.concat([rows(*[-2.0] * 4), rows(*[-2.0] * 4, seed=1)])
    found = judged.win_rates(ours, theirs)[CONDITION]
    assert (found.rate, found.n) == (0.625, 4)
    assert (found.low, found.high) == intervals.wilson(0.625, 4)


def test_means_leave_out_the_likelihood_of_empty_completions_and_count_them():
    found = judged.means(pd.concat([rows(-1.0, -2.0, math.nan), rows(-7.0, gamma=0.0)]))
    assert found[CONDITION] == CompletionMeans(-1.5, 0.5, 10 / 3, 1, 3)
    assert found[Condition("ask", 8, 0.0)] == CompletionMeans(-7.0, 0.5, 5.0, 0, 1)
