"""The last section of the page: the paper's claims, what our runs say about each, and the verdict."""

from __future__ import annotations

import math

from cudt.report.claims import JudgedClaim
from cudt.report.claims.base import FEWEST_SEEDS, Evidence
from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import Entry, TextTable

_SUPERVISED = "supervised"
#: Rows of single settings on the page; claims.csv has all.
_MOST_ROWS = 60
_UNCLEAR = "too few seeds to tell"
_RULE = (
    f"A setting tests a claim if it has at least {FEWEST_SEEDS} training seeds that no search chose among. It is for "
    "the claim if the 95 % interval over seeds lies within what the claim says, against it if the interval lies "
    "outside, and unclear otherwise: too few seeds to tell. A claim is supported if more than half of these settings "
    "are for it; otherwise it is not supported if one is against it, and not tested if none is. "
    "The paper compares with ERM. Supervised training, on the mean loss of all layers without constraints, is the "
    "harder baseline. claims.csv has all numbers."
)


class Claims(SectionType):
    """At the end of the page."""

    title = "The paper's claims"
    order = 1000

    def over_recipes(self, made: Material) -> Content | None:
        """A table of verdicts, and one of the settings behind them."""
        if not made.claims:
            return None
        return Content([_RULE], [_verdicts(made.claims), *_settings(made.claims)])


def _verdicts(judged: list[JudgedClaim]) -> TextTable:
    rows = []
    for one in judged:
        second = one.verdict(_SUPERVISED) if one.claim.is_compared else "–"
        verdicts = (Entry(text, is_bold=text == "supported") for text in (one.verdict(), second))
        numbers = (Entry(text) for text in (one.claim.paper(), _ours(one)))
        rows.append([Entry(one.claim.name), Entry(one.claim.statement), *verdicts, *numbers])
    headings = ["claim", "what it says", "verdict", "against supervised", "the paper", "our runs"]
    return TextTable("claims", "Verdicts", [("", len(headings))], headings, rows, is_prose=True)


def _ours(judged: JudgedClaim) -> str:
    """The numbers of a single setting, or how many settings are for and against; if none is a test, what is missing."""
    found = judged.against(judged.baselines[0])
    tested = [one for one in found if one.outcome != "not tested"]
    if not tested:
        return next((one.lacking for one in found if one.lacking), f"no runs; to test it: {judged.claim.test}")
    if len(tested) == 1:
        (one,) = tested
        return f"{_UNCLEAR if one.outcome == 'unclear' else one.outcome}: {one.quantity} {_numbers(one)}; {one.setting}"
    outcomes = [one.outcome for one in tested]
    counts = [f"{outcomes.count(name)} {name}" for name in ("for", "against", "unclear") if name in outcomes]
    reason = f": {_UNCLEAR}" if judged.verdict() == "not tested" else ""
    return f"of {len(tested)} settings, {', '.join(counts)}{reason}"


def _settings(judged: list[JudgedClaim]) -> list[TextTable]:
    """Every setting that tests a claim."""
    found = [(one.claim.name, part) for one in judged for part in one.evidence if part.outcome != "not tested"]
    if not found:
        return []
    rows = [
        [
            *(Entry(text) for text in (name, part.setting, part.quantity, part.baseline or "–")),
            Entry(_numbers(part)),
            Entry(str(part.interval.seeds)),
            Entry(part.outcome, is_bold=part.outcome == "for"),
        ]
        for name, part in found[:_MOST_ROWS]
    ]
    headings = [
        "claim",
        "setting",
        "quantity",
        "against",
        "constrained, effect (95 % interval)",
        "seeds",
        "outcome",
    ]
    notes = [f"The first {_MOST_ROWS} of {len(found)} rows."] if len(found) > _MOST_ROWS else []
    return [TextTable("claims-settings", "Settings", [("", len(headings))], headings, rows, notes, is_prose=True)]


def _numbers(found: Evidence) -> str:
    """`0.768 against 0.748, +0.02 (−0.04 to +0.08)`; without a baseline, the number with its interval."""
    low, high = (f"{end:.3g}" for end in (found.interval.low, found.interval.high))
    if math.isnan(found.theirs):
        return f"{found.ours:.3g} ({low} to {high})"
    signed = f"{found.interval.effect:+.3g} ({found.interval.low:+.3g} to {found.interval.high:+.3g})"
    return f"{found.ours:.4g} against {found.theirs:.4g}, {signed}"


SECTION = Claims()
