"""The scores of single test examples of one run under one kind of noise, checked against the run's
curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from cudt.evaluation import intervals
from cudt.evaluation.intervals import Array
from cudt.noise import scale_of
from cudt.report.collect import ReadRun
from cudt.utils.shown import as_command

#: Largest relative difference that rounding may cause between the metric of the scores and the one
#: in ood.csv.
_ROUNDING = 1e-6


class NoIntervalError(Exception):
    """Why a difference has no interval."""


@dataclass(frozen=True)
class Scores:
    """Scores of single examples: (examples, levels, noise seeds), examples in the order of their
    ids.
    """

    ids: pd.Index[str]
    levels: list[float]
    values: Array
    weights: Array
    is_root: bool
    of_clips: bool = False
    """Whether the examples are windows of clips, which are resampled as a whole."""

    def metrics(self, means: Array) -> Array:
        """From mean scores (…, levels · noise seeds) to the metric at each level, averaged over
        noise seeds.
        """
        split = means.reshape(*means.shape[:-1], *self.values.shape[1:])
        return (np.sqrt(split) if self.is_root else split).mean(-1)

    @cached_property
    def whole(self) -> Array:
        """The metric at each level."""
        values, weights = self._flat()
        return self.metrics((values * weights).sum(0) / weights.sum(0))

    @cached_property
    def resampled(self) -> Array:
        """The metric at each level on each resample of the examples or their clips, (resamples,
        levels).
        """
        return self.metrics(intervals.resampled_means(*self._flat(), self.clips))

    @cached_property
    def clips(self) -> Array | None:
        """The number of each example's clip, if they are windows of clips."""
        return intervals.clips_of(self.ids.tolist()) if self.of_clips else None

    @property
    def unit(self) -> str:
        """What is resampled."""
        return "clips" if self.of_clips else "examples"

    @property
    def n_units(self) -> int:
        """The number of clips, or of examples."""
        return len(self.ids) if self.clips is None else len(np.unique(self.clips))

    def of(self, ids: pd.Index[str]) -> Scores:
        """The scores of some examples; the same object for all of them, so that a run is resampled
        once.
        """
        if ids.equals(self.ids):
            return self
        rows = self.ids.get_indexer(ids)
        return replace(self, ids=ids, values=self.values[rows], weights=self.weights[rows])

    def columns(self, levels: Sequence[float]) -> list[int]:
        """The indices of these levels."""
        return [self.levels.index(level) for level in levels]

    def _flat(self) -> tuple[Array, Array]:
        """Values and weights with a column for each level and noise seed: a resample draws whole
        examples.
        """
        values, weights = (
            table.reshape(len(self.ids), -1) for table in (self.values, self.weights)
        )
        return values, weights


class Measured:
    """A run's curve and scores under one kind of noise."""

    def __init__(self, run: ReadRun, noise: str) -> None:
        self.run, self.noise = run, noise
        rows = run.ood[(run.ood["perturbation"] == noise) & (run.ood["metric"] == run.metric)]
        self.curve: dict[float, float] = rows.groupby("gamma")["value"].mean().to_dict()
        self.noise_seeds = sorted(int(seed) for seed in set(rows["seed"]))

    @cached_property
    def scores(self) -> Scores:
        """The scores in examples.parquet; refused if some are missing or do not give the metric in
        ood.csv.
        """
        found, is_present = self._filled(self.run.run.read_examples(self.noise))
        in_table = [self.curve[level] for level in found.levels]
        if not np.allclose(found.whole, in_table, rtol=_ROUNDING, atol=0, equal_nan=True):
            raise self._outdated("examples.parquet does not give the metric in ood.csv")
        return found.of(found.ids[np.flatnonzero(is_present.all((1, 2)))])

    def _filled(self, table: pd.DataFrame) -> tuple[Scores, Array]:
        """The table as (examples, levels, noise seeds), and where it has rows; elsewhere the weight
        is 0.
        """
        levels, seeds = np.array(sorted(self.curve)), np.array(self.noise_seeds)
        table = table[table["gamma"].isin(levels) & table["seed"].isin(seeds)]
        codes, ids = pd.factorize(table["id"], sort=True)
        cells = (
            codes,
            np.searchsorted(levels, table["gamma"]),
            np.searchsorted(seeds, table["seed"]),
        )
        values, weights, is_present = np.zeros((3, len(ids), len(levels), len(seeds)))
        values[cells], weights[cells], is_present[cells] = table["score"], table["weight"], 1
        if is_present.sum() < len(table):
            raise NoIntervalError(
                f"{self.run.run.path}: some test examples share an id and cannot be paired"
            )
        missing = levels[(is_present.sum(0) == 0).any(-1)]
        if len(missing):
            level = f"{scale_of(self.noise).symbol} = {missing[0]:g}"
            raise self._outdated(f"no scores of single examples at {level}")
        of_clips = self.run.info.windows_of_clips
        return Scores(
            pd.Index(ids), levels.tolist(), values, weights, self.run.is_root, of_clips
        ), is_present

    def _outdated(self, problem: str) -> NoIntervalError:
        path = self.run.run.results
        return NoIntervalError(
            f"{path}: {problem}; to fix it, run `{as_command('eval-ood', path)}` at every level"
        )
