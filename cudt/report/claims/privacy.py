"""The paper's motive: whether the noise levels give users differential privacy."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

import numpy as np

from cudt.method.privacy import NOISE, REASONABLE, UNIT
from cudt.report.claims.base import Claim, Evidence, Runs, of_every_seed, too_few
from cudt.report.collect import ReadRun
from cudt.report.privacy import deltas, shared_delta

#: A model withstands noise that leaves this share of its metric without noise; the paper gives no number.
_USABLE = 0.9


def private(runs: Runs) -> list[Evidence]:
    """The smallest ε of one token at a level that the model withstands, for the δ of the recipe's figure."""
    by_recipe: dict[str, list[list[ReadRun]]] = {}
    for group in runs.groups:
        by_recipe.setdefault(group[0].recipe, []).append(group)
    made = []
    for groups in by_recipe.values():
        delta = shared_delta(groups)
        if delta is not None:
            made += [_evidence(runs, group, delta) for group in groups if delta in deltas(group)]
    return made


def _evidence(runs: Runs, group: Sequence[ReadRun], delta: float) -> Evidence:
    found, first = [_smallest(run, delta) for run in group], group[0]
    lacking = too_few(len(found))
    if np.isnan(found).any():
        folder = f"{shlex.quote(str(first.run.path.parent))}/*"
        lacking = f"no metric without noise: run `cudt eval-ood {folder} --gammas 0`, then `cudt privacy {folder}`"
    return Evidence(
        runs.setting(first, NOISE),
        f"smallest ε of one {UNIT} at δ = {delta:g} and a level that leaves {100 * _USABLE:.0f} % of {first.metric} "
        "(every seed)",
        of_every_seed(found),
        ours=float(np.mean(found)),
        more_than=-math.inf,
        less_than=REASONABLE,
        is_for_every_seed=True,
        lacking=lacking,
    )


def _smallest(run: ReadRun, delta: float) -> float:
    """Infinite if the model withstands no noise; not a number if its metric without noise is not known."""
    rows = run.run.read_table("privacy")
    rows = rows[(rows["unit"] == UNIT) & (rows["delta"] == delta)]
    clean = rows[rows["gamma"] == 0]["value"]
    if clean.empty:
        return math.nan
    return float(rows[rows["value"] >= _USABLE * clean.iloc[0]]["epsilon"].min())


ORDER = 50
CLAIMS = [
    Claim(
        "privacy",
        f"Noise that models withstand (our reading: {100 * _USABLE:.0f} % of the metric is left) protects users "
        f"(ε ≤ {REASONABLE:g} for one token)",
        lambda: "named as an application; no ε",
        private,
        "cudt privacy on evaluated text runs",
        is_compared=False,
    ),
]
