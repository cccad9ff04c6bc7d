"""The first table of the page: constrained against ERM in every cell, and all comparisons in one
sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cudt.report.collect import GroupKey, ReadRun
from cudt.report.comparable import CONSTRAINED, SIDES, cell_of, matches, model_settings
from cudt.report.compare import Comparison, compare
from cudt.report.objectives import BASELINE

#: What a comparison shows, of one comparison and of several.
_OUTCOMES = {
    CONSTRAINED: ("favours the constrained model", "favour the constrained model"),
    BASELINE: ("favours the unconstrained model", "favour the unconstrained model"),
    "": ("shows no clear difference", "show no clear difference"),
    "uneven": ("has unequal numbers of runs", "have unequal numbers of runs"),
}
#: What an interval is over, and the units of paired.csv that mean it.
_UNITS = {
    "intervals over training seeds": ("seeds", "seeds paired"),
    "intervals over test examples of single runs, which say nothing about other training seeds": (
        "examples",
    ),
    "intervals over test clips of single runs, which say nothing about other training seeds": (
        "clips",
    ),
}


def comparisons(runs: Sequence[ReadRun], labels: Mapping[GroupKey, str]) -> list[dict[str, Any]]:
    """A row for each comparison of constrained with ERM (comparable.matches) under each kind of
    noise.

    ERM may be part of several comparisons: kinds of noise that it alone was evaluated under are
    none of this one's.
    """
    rows = []
    for match in matches(runs):
        noises = _noises([run for run in match if run.objective == CONSTRAINED]) or _noises(match)
        rows += [_row(compare(match, noise), match, labels) for noise in noises]
    return rows


def _noises(runs: Sequence[ReadRun]) -> list[str]:
    """The kinds of noise that one of the runs was evaluated under."""
    return [*dict.fromkeys(str(kind) for run in runs for kind in run.ood["perturbation"].unique())]


def _row(
    compared: Comparison, runs: Sequence[ReadRun], labels: Mapping[GroupKey, str]
) -> dict[str, Any]:
    cell, ours = cell_of(runs[0]), compared.sides[CONSTRAINED]
    is_same_model = len({model_settings(run) for run in runs}) == 1
    means = {
        f"{quantity}_{side}": compared.mean(side, quantity)
        for quantity in ("id_mean", "ood_mean")
        for side in SIDES
    }
    return {
        **vars(compared.difference("ood_mean")),
        **means,
        "recipe": cell.model,
        "label": labels[ours.runs[0].group] if ours.runs else CONSTRAINED,
        "setting": f"L = {cell.layers}, γ_train = {cell.gamma_train:g}{cell.apart}, {compared.noise}"
        + ("" if is_same_model else ", ERM with other model settings"),
        "metric": cell.metric,
        "arrow": "↑" if runs[0].higher_is_better else "↓",
        "infeasible": ours.infeasible_text,
        "runs": _runs_text(compared),
    }


def _runs_text(compared: Comparison) -> str:
    """The number of runs on each side."""
    ours, baseline = (compared.sides[side].how for side in SIDES)
    return ours if ours == baseline else f"{ours} against {baseline}"


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """All comparisons in one sentence; intervals over examples of single runs are counted
    separately.
    """
    parts = []
    for text, units in _UNITS.items():
        counts = Counter(_outcome(row) for row in rows if row["unit"] in units)
        if counts:
            found = [
                f"{counts[name]} {words[counts[name] > 1]}"
                for name, words in _OUTCOMES.items()
                if counts[name]
            ]
            parts.append(f"{', '.join(found)} ({text})")
    if without := sum(not row["unit"] for row in rows):
        parts.append(f"{without} {'has' if without == 1 else 'have'} no interval")
    count = "1 comparison" if len(rows) == 1 else f"{len(rows)} comparisons"
    return f"Out of distribution, of {count}: {'; '.join(parts)}." if parts else ""


def _outcome(row: dict[str, Any]) -> str:
    """The better side; of two that were selected from unequal numbers of runs, neither is."""
    if row["better"]:
        return str(row["better"])
    return "uneven" if row["low"] > 0 or row["high"] < 0 else ""
