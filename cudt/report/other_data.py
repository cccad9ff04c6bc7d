"""Runs on data that they were never trained on (`cudt eval-ood --on`): mean metrics over γ, and paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cudt.report import paired
from cudt.report.collect import GroupKey, ReadRun, read_run
from cudt.report.comparable import Pair, by_cell, by_group, matched_settings, pairs
from cudt.report.figures.words import short
from cudt.report.names import labels
from cudt.report.tables import deviation
from cudt.report.text_table import Entry, TextTable
from cudt.runs.find import is_of_other_data
from cudt.utils.errors import UserError

COLUMNS = [
    *("recipe", "data", "layers", "gamma_train", "perturbation", "metric", "levels"),
    *("objective", "variant", "label", "seeds", "mean", "std"),
    *("against", "against_variant", "against_label", "against_seeds", "against_mean", "against_std"),
    *("difference", "low", "high", "unit", "n", "better", "reason"),
]
_STEM = "other-data"
_NOTE = (
    "Mean of the metric over the noise levels, on the test data of another task than the run's own; the noise is that "
    "of the run's own evaluation. Means are over seeds. Difference: the objective minus the one that it is compared "
    "with, with the 95 % interval of paired differences over seeds and test examples or clips; of single runs, over "
    "examples or clips alone. Bold: the interval excludes 0."
)


def read(runs: Sequence[ReadRun]) -> tuple[dict[str, list[ReadRun]], list[str]]:
    """The results of runs on other data, by the name of the data, and a warning for each folder that is damaged."""
    found: dict[str, list[ReadRun]] = {}
    warnings = []
    for run in runs:
        for folder in sorted(filter(is_of_other_data, run.run.path.glob("on-*"))):
            try:
                tested = read_run(folder)
            except UserError as error:
                warnings.append(str(error))
                continue
            if tested.run.other_data is not None and not tested.ood.empty:
                found.setdefault(tested.run.other_data.name, []).append(tested)
    return dict(sorted(found.items())), warnings


def table(tested: dict[str, list[ReadRun]]) -> pd.DataFrame:
    """A row for each pair of objectives on each data set; for a group without a partner, its mean alone."""
    rows = [{"data": name, **row} for name, runs in tested.items() for row in _rows(runs)]
    made = pd.DataFrame(rows, columns=COLUMNS)
    return made.sort_values(["recipe", "data", "layers", "gamma_train"], kind="stable", ignore_index=True)


def _rows(runs: Sequence[ReadRun]) -> Iterator[dict[str, Any]]:
    called = labels(runs, short)
    for row in _unnamed_rows(runs):
        row["label"] = called[row["recipe"], row["objective"], row["variant"]]
        if "against" in row:
            row["against_label"] = called[row["recipe"], row["against"], row["against_variant"]]
        yield row


def _unnamed_rows(runs: Sequence[ReadRun]) -> Iterator[dict[str, Any]]:
    seen = set()
    for pair in _matched(pairs(runs)):
        seen |= {(pair.noise, run.run.path) for run in (*pair.ours, *pair.baseline)}
        yield from _of_pair(pair)
    for cell in by_cell(runs).values():
        for group in by_group(cell).values():
            for noise in sorted({noise for run in group for noise in run.curves}):
                alone = [run for run in group if noise in run.curves and (noise, run.run.path) not in seen]
                if alone:
                    yield {**_shared(alone, noise, _levels(alone, noise)), **_side(alone, noise, _levels(alone, noise))}


def _matched(found: Sequence[Pair]) -> list[Pair]:
    """The pairs with the same `matched_settings` on both sides, and those of groups that have no such partner."""
    alike = [pair for pair in found if matched_settings(pair.ours[0]) == matched_settings(pair.baseline[0])]
    have = {_compared(pair) for pair in alike}
    return [pair for pair in found if pair in alike or _compared(pair) not in have]


def _compared(pair: Pair) -> tuple[str, GroupKey, str]:
    """A group, and the objective that it is compared with, under a kind of noise."""
    return pair.noise, pair.ours[0].group, pair.baseline[0].objective


def _of_pair(pair: Pair) -> Iterator[dict[str, Any]]:
    """The means of both sides at the levels that all runs have, and their difference with its interval."""
    _, ours, baseline = paired.chosen(pair)
    levels = _levels([*ours, *baseline], pair.noise)
    found = paired.of_pair(pair)
    for row in found[found["quantity"] == "mean"].to_dict("records"):
        against = {f"against_{key}": value for key, value in _side(baseline, pair.noise, levels).items()}
        against["against"] = against.pop("against_objective")
        numbers = {key: row[key] for key in ("difference", "low", "high", "unit", "n", "better", "reason")}
        yield {**_shared(ours, pair.noise, levels), **_side(ours, pair.noise, levels), **against, **numbers}


def _levels(runs: Sequence[ReadRun], noise: str) -> list[float]:
    return sorted(set.intersection(*(set(run.curves[noise]) for run in runs)))


def _shared(runs: Sequence[ReadRun], noise: str, levels: Sequence[float]) -> dict[str, Any]:
    first = runs[0]
    names = {"recipe": first.recipe, "layers": first.n_layers, "gamma_train": first.gamma_train}
    return {**names, "perturbation": noise, "metric": first.metric, "levels": len(levels)}


def _side(runs: Sequence[ReadRun], noise: str, levels: Sequence[float]) -> dict[str, Any]:
    """The mean over seeds of each run's mean over levels, and the standard deviation over seeds."""
    means = [float(np.mean([run.curves[noise][level] for level in levels])) for run in runs]
    std = deviation(means) if len(means) > 1 else np.nan
    named = {"objective": runs[0].objective, "variant": runs[0].variant, "seeds": len(runs)}
    return {**named, "mean": float(np.mean(means)), "std": std}


# ---------------------------------------------------------------- as text


@dataclass(frozen=True)
class OtherDataNumbers:
    """The table, and what could not be read for it."""

    numbers: pd.DataFrame
    warnings: list[str]

    @property
    def text(self) -> TextTable:
        """The table for people."""
        headings = ["recipe", "data", "L", "γ_train", "noise", "objective", "mean", "against", "mean", "difference"]
        rows = [_entries(row) for row in self.numbers.to_dict("records")]
        metrics = " and ".join(dict.fromkeys(self.numbers["metric"]))
        return TextTable(_STEM, f"Mean {metrics} on other test data", [("", len(headings))], headings, rows, [_NOTE])


def collect(runs: Sequence[ReadRun]) -> OtherDataNumbers:
    """Everything about the results of runs on other data; without rows if there are none."""
    tested, warnings = read(runs)
    return OtherDataNumbers(table(tested), warnings)


def _entries(row: dict[Any, Any]) -> list[Entry]:
    settings = [row["recipe"], row["data"], f"{row['layers']}", f"{row['gamma_train']:g}", row["perturbation"]]
    ours = [Entry(row["label"]), _mean(row["mean"], row["seeds"])]
    if not isinstance(row["against"], str):
        return [*map(Entry, settings), *ours, Entry(), Entry(), Entry()]
    difference = f"{row['difference']:+.3f}".replace("-", "−")
    ends = f"{row['low']:+.3f} to {row['high']:+.3f}".replace("-", "−") if np.isfinite(row["low"]) else row["reason"]
    against = [Entry(row["against_label"]), _mean(row["against_mean"], int(row["against_seeds"]))]
    return [*map(Entry, settings), *ours, *against, Entry(difference, ends, bool(row["better"]))]


def _mean(value: float, seeds: int) -> Entry:
    return Entry(f"{value:.3f}", f"{seeds} seed{'' if seeds == 1 else 's'}")
