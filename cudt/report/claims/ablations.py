"""The ablations of α and of the dual learning rate η₂: what a setting changes, all others equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cudt.report.claims.base import Claim, Evidence, Runs, mean_metric, over_seeds, sign_of, too_few, trained_noise
from cudt.report.claims.robustness import TOLERATED_LOSS
from cudt.report.collect import ReadRun
from cudt.report.comparable import CONSTRAINED

_ALPHA, _DUAL_RATE = "descent.alpha", "descent.dual.learning_rate"
#: Fewer values of a setting show no trend.
_FEWEST_VALUES = 3
#: The paper gives no number for "little"; ours, as a share of the accuracy or of the error.
_LITTLE = 0.01


def alpha_ood(runs: Runs) -> list[Evidence]:
    """The change of the mean OOD metric from the smallest to the largest α."""
    return [_change(run, runs_of, "OOD", _ALPHA, float) for run, runs_of in _series(runs.all, _ALPHA)]


def alpha_id(runs: Runs) -> list[Evidence]:
    """The same in distribution, where little may be lost."""
    found = [_change(run, runs_of, "ID", _ALPHA, float) for run, runs_of in _series(runs.all, _ALPHA)]
    return [replace(one, more_than=-TOLERATED_LOSS * _unit(one)) for one in found]


def dual_rate(runs: Runs) -> list[Evidence]:
    """The change of the mean OOD metric from the smallest to the largest η₂, over the logarithm of η₂."""
    found = [_change(run, mine, "OOD", _DUAL_RATE, np.log) for run, mine in _series(runs.all, _DUAL_RATE)]
    return [replace(one, more_than=-_LITTLE * _unit(one), less_than=_LITTLE * _unit(one)) for one in found]


def _unit(found: Evidence) -> float:
    """What shares are of: 1 for accuracies, the error itself for errors."""
    return 1.0 if "accuracy" in found.quantity else found.theirs


def _series(runs: Sequence[ReadRun], key: str) -> list[tuple[ReadRun, list[ReadRun]]]:
    """Constrained runs that differ in their seed and one setting only, if it has enough values; each with a first."""
    found: dict[tuple[object, ...], list[ReadRun]] = {}
    for run in runs:
        value = run.settings.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if run.objective == CONSTRAINED and is_number and trained_noise(run) in run.curves:
            others = tuple(sorted((name, str(one)) for name, one in run.settings.items() if name != key))
            found.setdefault((run.recipe, others), []).append(run)
    return [(mine[0], mine) for mine in found.values() if len({run.settings[key] for run in mine}) >= _FEWEST_VALUES]


def _change(first: ReadRun, runs: Sequence[ReadRun], where: str, key: str, scale: Callable[[float], float]) -> Evidence:
    """The slope of each seed that has every value, times the range of the setting; the larger, the better."""
    noise, values = trained_noise(first), sorted({float(run.settings[key]) for run in runs})
    x = np.array([float(scale(value)) for value in values])
    changes = []
    for seed in sorted({run.seed for run in runs}):
        at = {float(run.settings[key]): mean_metric(run, noise, where) for run in runs if run.seed == seed}
        if sorted(at) == values:
            changes.append(float(np.polyfit(x, [at[value] for value in values], 1)[0] * (x[-1] - x[0])))
    largest, smallest = (
        float(np.mean([mean_metric(run, noise, where) for run in runs if run.settings[key] == value]))
        for value in (values[-1], values[0])
    )
    setting = f"{first.recipe}, γ_train = {first.gamma_train:g}, {noise}, {key} {values[0]:g} to {values[-1]:g}"
    found = over_seeds([sign_of(first) * change for change in changes])
    quantity = f"mean {first.metric} {where} at the largest and at the smallest value"
    return Evidence(setting, quantity, found, "", largest, smallest, lacking=too_few(found.seeds))


def _test(search: str) -> str:
    return f"cudt sweep --search {search}, then cudt eval-ood on its runs"


ORDER = 40
CLAIMS = [
    Claim(
        "α",
        "The larger α, the more robust the model",
        lambda: "accuracy at γ = 1.65 from 65 % (α = 0) to over 75 % (α = 0.5); RoBERTa on IMDb, 3 seeds",
        alpha_ood,
        _test("alpha"),
        is_compared=False,
    ),
    Claim(
        "cost of α",
        f"A larger α costs at most {100 * TOLERATED_LOSS:.1f} % in distribution",
        lambda: "less than 0.3 % (main text), about 0.03 % (appendix)",
        alpha_id,
        _test("alpha"),
        is_compared=False,
    ),
    Claim(
        "η₂",
        f"The dual learning rate hardly matters (less than {100 * _LITTLE:.0f} %, our reading)",
        lambda: "little sensitivity from η₂ = 0.001 to 0.1; no number",
        dual_rate,
        _test("dual-rate"),
        is_compared=False,
    ),
]
