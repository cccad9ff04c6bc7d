"""The paper's claims, judged on the runs of a report. base.py has the contract and the rule."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cudt.report import paired
from cudt.report.claims.base import VERDICTS, Claim, Evidence, Runs, Verdict, verdict
from cudt.report.collect import ReadRun
from cudt.report.objectives import BASELINE
from cudt.report.sweeps import ReadSweep

__all__ = ["JudgedClaim", "all_claims", "judge", "summary", "table"]


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with what the runs say about it."""

    claim: Claim
    evidence: list[Evidence]

    @property
    def baselines(self) -> list[str]:
        """The objectives that constrained is compared with, ERM first; one empty name if it is compared with none."""
        others = sorted({one.baseline for one in self.evidence} - {BASELINE})
        return [BASELINE, *others] if self.claim.is_compared else [""]

    def against(self, baseline: str) -> list[Evidence]:
        """What the comparisons with one objective say."""
        return [one for one in self.evidence if one.baseline == baseline]

    def verdict(self, baseline: str | None = None) -> Verdict:
        """By the comparisons with one objective: by default with ERM, as in the paper."""
        return verdict(self.against(self.baselines[0] if baseline is None else baseline))


def all_claims() -> list[Claim]:
    """Every claim, in the order of the page."""
    found = (importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__))
    families = sorted((module for module in found if hasattr(module, "CLAIMS")), key=lambda module: module.ORDER)
    return [claim for module in families for claim in module.CLAIMS]


def judge(runs: Sequence[ReadRun], sweeps: Sequence[ReadSweep], differences: pd.DataFrame) -> list[JudgedClaim]:
    """Judge every claim; `differences` is paired.csv of all runs."""
    searches = [sweep for sweep in sweeps if sweep.is_search]
    chosen = {str(name) for sweep in searches for name in sweep.finished["run"].dropna()}
    fresh = [run for run in runs if run.name not in chosen]
    if len(fresh) < len(runs):
        differences, _ = paired.compare(fresh)
    found = Runs(runs, chosen, differences)
    return [JudgedClaim(claim, claim.find(found)) for claim in all_claims()]


def summary(judged: Sequence[JudgedClaim]) -> str:
    """The number of claims with each verdict: `2 supported, 1 not supported, 14 not tested`."""
    counts = Counter(one.verdict() for one in judged)
    return ", ".join(f"{counts[wanted]} {wanted}" for wanted in VERDICTS if counts[wanted])


def table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """claims.csv: a row for each setting that a claim was looked at in, or one that says how to test it."""
    return pd.DataFrame([row for one in judged for row in _rows(one)])


def _rows(judged: JudgedClaim) -> list[dict[str, Any]]:
    claim = judged.claim
    shared = {"claim": claim.name, "statement": claim.statement, "paper": claim.paper()}
    empty = {"verdict": "not tested", "outcome": "not tested", "lacking": f"no runs; to test it: {claim.test}"}
    return [
        {
            **shared,
            "against": one.baseline,
            "verdict": judged.verdict(one.baseline),
            "setting": one.setting,
            "quantity": one.quantity,
            "ours": one.ours,
            "theirs": one.theirs,
            **vars(one.interval),
            "more_than": one.more_than,
            "less_than": one.less_than,
            "outcome": one.outcome,
            "lacking": one.lacking,
        }
        for one in judged.evidence
    ] or [{**shared, **empty}]
