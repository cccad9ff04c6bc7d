"""The paper's motive: whether the noise levels give users differential privacy."""

from __future__ import annotations

import math

import numpy as np

from cudt.evaluation.privacy import NOISE, REASONABLE, UNIT
from cudt.report.claims.base import Claim, Evidence, Runs, of_every_seed, too_few
from cudt.report.collect import ReadRun


def private(runs: Runs) -> list[Evidence]:
    """The smallest ε of one token at any evaluated level."""
    made = []
    for group in runs.groups:
        found = [epsilon for run in group if math.isfinite(epsilon := _smallest(run))]
        if found:
            made.append(
                Evidence(
                    runs.setting(group[0], NOISE),
                    f"smallest ε of one {UNIT} at an evaluated level (every seed)",
                    of_every_seed(found),
                    ours=float(np.mean(found)),
                    more_than=-math.inf,
                    less_than=REASONABLE,
                    is_for_every_seed=True,
                    lacking=too_few(len(found)),
                )
            )
    return made


def _smallest(run: ReadRun) -> float:
    if not run.has_table("privacy"):
        return math.nan
    rows = run.run.read_table("privacy")
    return float(rows[rows["unit"] == UNIT]["epsilon"].min())


ORDER = 50
CLAIMS = [
    Claim(
        "privacy",
        f"Noise that models withstand protects users (ε ≤ {REASONABLE:g} for one token)",
        lambda: "named as an application; no ε",
        private,
        "cudt privacy on evaluated text runs",
        is_compared=False,
    ),
]
