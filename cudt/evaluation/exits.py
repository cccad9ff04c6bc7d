"""Early exit on noisy test inputs: accuracy against mean depth and FLOPs, for rules set on
validation data.

Thresholds are quantiles on validation data at γ_train. For each rule one is chosen there: the one
with the least mean depth whose accuracy is at most half a percentage point below that of the full
model. Test data have no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cudt.config.levels import training_level
from cudt.data.batching import Batch
from cudt.data.loading import Share
from cudt.data.splits import Split
from cudt.evaluation.exit_rules import ExitRule, LayerAnswers, RuleName, operating_points
from cudt.evaluation.grid import Grid
from cudt.evaluation.layer_flops import FlopCounts, LayerFlops
from cudt.evaluation.passes import Pass, loading
from cudt.evaluation.team import results
from cudt.models.layer_losses import LayerwiseLosses, with_noise
from cudt.noise import NoiseSource, TextNoise, noise_kind
from cudt.runs import checksums
from cudt.runs.run import Run
from cudt.runs.tables import TABLES, file_of
from cudt.tasks.classification import Classification
from cudt.utils.autocast import computing_in
from cudt.utils.errors import UserError
from cudt.utils.progress import Track
from cudt.utils.shown import as_command

#: How far accuracy on validation data may fall below the full model's.
TOLERANCE = 0.005


@dataclass(frozen=True)
class OperatingPoint:
    """A rule with one of its thresholds; points are numbered from the shallowest."""

    rule: ExitRule
    number: int
    is_chosen: bool


@dataclass(frozen=True)
class _Answered:
    """A batch: its level, the answers of all layers, the true classes, and its cost."""

    level: float
    answers: LayerAnswers
    truth: Tensor
    flops: LayerFlops


def check(run: Run) -> None:
    """Refuse a run without classes, or of one layer."""
    info = run.finished_info()
    if info.metric.name != Classification.metric_name:
        raise UserError(
            f"early exits need a classification task, but '{run.path}' has task "
            f"{run.recipe.settings.task.name}; "
            "leave out --exits"
        )
    if info.layers < 2:
        raise UserError(
            f"early exits need at least two layers, but '{run.path}' has one; leave out --exits"
        )


def evaluate_exits(run: Run, layerwise: LayerwiseLosses, grid: Grid, track: Track) -> None:
    """Write exits.csv: every operating point on validation data at γ_train, and on test data at
    each level.

    The operating points of an earlier evaluation are kept. Levels that were evaluated before are
    replaced.
    """
    observer = _Observer(run, layerwise, track)
    checksums.forget_lost(run.results, file_of("exits"))
    if not (points := read_points(run)):
        points = _choose_points(run, observer)
    settings = run.recipe.settings
    seeds = grid.seeds(settings.evaluation)
    for kind in grid.kinds(settings.evaluation):
        levels = sorted(
            {
                *grid.levels(kind, settings.evaluation),
                training_level(kind, settings.noise.gamma_train),
            }
        )
        stored = run.read_table("exits")
        before = stored[(stored["split"] == "test") & (stored["perturbation"] == kind)]
        # One curve must not mix levels of different noise seeds.
        keys = ["perturbation", "gamma"] if set(before["seed"]) == set(seeds) else ["perturbation"]
        rows = [
            _rows(observer.answered("test", kind, seed, levels), points, ("test", kind, seed))
            for seed in seeds
        ]
        run.merge_table("exits", pd.concat(rows), ["split", *keys])


def left(run: Run, grid: Grid) -> list[str]:
    """The kinds of noise for which levels or noise seeds of the grid are still missing in
    exits.csv.
    """
    settings, stored = run.recipe.settings.evaluation, run.read_table("exits")
    test = stored[stored["split"] == "test"]
    kinds = []
    for kind in grid.kinds(settings):
        rows, seeds = test[test["perturbation"] == kind], grid.seeds(settings)
        wanted = {(level, seed) for level in grid.levels(kind, settings) for seed in seeds}
        found = {*zip(rows["gamma"], rows["seed"], strict=True)}
        if not wanted <= found or set(rows["seed"]) != set(seeds):
            kinds.append(kind)
    return kinds


def read_points(run: Run) -> list[OperatingPoint]:
    """The operating points in a run's exits.csv; none before `cudt eval-ood --exits`."""
    stored = run.read_table("exits")
    rows = stored[stored["split"] == "validation"]
    columns = (rows[name] for name in ("rule", "threshold", "point", "chosen"))
    return [
        OperatingPoint(ExitRule(rule, threshold), int(number), bool(is_chosen))
        for rule, threshold, number, is_chosen in zip(*columns, strict=True)
    ]


def _choose_points(run: Run, observer: _Observer) -> list[OperatingPoint]:
    """Set thresholds on validation data at γ_train under the noise of training, and write their
    rows.
    """
    noise = run.recipe.settings.noise
    found = list(observer.answered("validation", noise.kind, 0, [noise.gamma_train]))
    rules = operating_points(LayerAnswers.joined([part.answers for part in found]))
    points = [
        OperatingPoint(rule, number, False)
        for one in rules.values()
        for number, rule in enumerate(one)
    ]
    rows = _rows(found, points, ("validation", noise.kind, 0))
    best = {name: _best_point(rows[rows["rule"] == name]) for name in rules}
    rows["chosen"] = [
        int(best[rule] == point) for rule, point in zip(rows["rule"], rows["point"], strict=True)
    ]
    run.merge_table("exits", rows, ["split"])
    return read_points(run)


def _best_point(rows: pd.DataFrame) -> int:
    """The point with the least mean depth that is accurate enough; of several, the most
    accurate.
    """
    # A little more, so that rounding does not refuse a point that is exactly at the limit.
    accurate = rows[rows["accuracy"] >= rows["full_accuracy"] - TOLERANCE - 1e-9]
    return int(
        accurate.sort_values(["mean_depth", "accuracy"], ascending=[True, False])["point"].iloc[0]
    )


class _Observer:
    """Runs the model on noisy examples and keeps what rules read of its layers."""

    def __init__(self, run: Run, layerwise: LayerwiseLosses, track: Track) -> None:
        if not isinstance(layerwise.task, Classification):
            raise UserError(
                f"early exits need a classification task, not {type(layerwise.task).__name__}"
            )
        self._run, self._layerwise, self._track = run, layerwise, track

    def answered(
        self, split: Split, kind: str, seed: int, levels: Sequence[float]
    ) -> Iterator[_Answered]:
        """Every batch of a split at each level."""
        loaded = loading(self._run.recipe.settings)
        if isinstance(noise_kind(kind), TextNoise):
            passes = [_Answering(split, *loaded, corrupted=(kind, level, seed)) for level in levels]
        else:
            source = NoiseSource(kind, self._run.finished_info().sigma_x.evaluation, seed)
            passes = [_Answering(split, *loaded, source if any(levels) else None, levels)]
        for one in passes:
            total = one.total(self._layerwise.task)
            found = results(one, self._layerwise, total)
            for answers in self._track(found, total, f"{self._run.label} early exits, {kind}"):
                yield from answers


class _Answering(Pass):
    """A pass that keeps what rules read of the layers."""

    @torch.no_grad()
    def __call__(self, layerwise: LayerwiseLosses, share: Share) -> Iterator[list[_Answered]]:
        """The answers to each batch of one process, at each level."""
        flops = FlopCounts(layerwise.eval().model)
        for batch, drawn in with_noise(layerwise.model, self.batches(layerwise, share), self.noise):
            if self.corrupted is not None:
                yield [self._read(layerwise, flops, batch, None, self.corrupted[1])]
            else:
                scaled = [
                    level * drawn if drawn is not None and level else None for level in self.levels
                ]
                at_levels = zip(scaled, self.levels, strict=True)
                yield [
                    self._read(layerwise, flops, batch, noise, level) for noise, level in at_levels
                ]

    def _read(
        self,
        layerwise: LayerwiseLosses,
        flops: FlopCounts,
        batch: Batch,
        noise: Tensor | None,
        level: float,
    ) -> _Answered:
        task, (signal, _) = layerwise.task, layerwise.model.signal(batch)
        assert isinstance(task, Classification)
        layers: list[LayerAnswers] = []

        def read(answer: Tensor) -> None:
            probabilities = task.probabilities(answer.double()).cpu()
            layers.append(LayerAnswers.read(probabilities, layers[-1] if layers else None))

        with computing_in(self.precision, signal.device):
            counted = flops.visit(signal if noise is None else signal + noise, batch, read)
        return _Answered(
            level, LayerAnswers.joined(layers, of_layers=True), batch["labels"].cpu(), counted
        )


class _Tally:
    """Sums over the examples at one level, for each operating point."""

    def __init__(self, n_points: int) -> None:
        self.n, self.full = 0, np.zeros(2)
        self.sums = np.zeros((n_points, 3))

    def add(self, part: _Answered, points: Sequence[OperatingPoint]) -> None:
        size = len(part.truth)
        self.n += size
        self.full += [int((part.answers.labels[-1] == part.truth).sum()), part.flops.full * size]
        for index, point in enumerate(points):
            layers = point.rule.exit_layers(part.answers)
            labels = part.answers.labels.gather(0, layers.unsqueeze(0) - 1).squeeze(0)
            cost = part.flops.leaving[layers - 1]
            self.sums[index] += [
                int((labels == part.truth).sum()),
                int(layers.sum()),
                float(cost.sum()),
            ]

    def rows(
        self, points: Sequence[OperatingPoint], start: tuple[Any, ...]
    ) -> Iterator[tuple[Any, ...]]:
        full_accuracy, full_flops = self.full / self.n
        for point, (accuracy, depth, flops) in zip(points, self.sums / self.n, strict=True):
            rule = (point.rule.name, point.number, point.rule.threshold, int(point.is_chosen))
            yield (*start, *rule, accuracy, full_accuracy, depth, flops, full_flops, self.n)


def _rows(
    parts: Iterable[_Answered], points: Sequence[OperatingPoint], of: tuple[Split, str, int]
) -> pd.DataFrame:
    """The rows of a split, a kind of noise and a noise seed, at each level."""
    split, kind, seed = of
    tallies: dict[float, _Tally] = {}
    for part in parts:
        tallies.setdefault(part.level, _Tally(len(points))).add(part, points)
    rows = [
        row
        for level, tally in sorted(tallies.items())
        for row in tally.rows(points, (split, kind, level, seed))
    ]
    return pd.DataFrame(rows, columns=TABLES["exits"])


def chosen_rule(run: Run, name: RuleName) -> ExitRule:
    """A rule with the threshold that was chosen for a run; a UserError before `cudt eval-ood
    --exits`.
    """
    found = [
        point.rule for point in read_points(run) if point.is_chosen and point.rule.name == name
    ]
    if not found:
        raise UserError(
            f"'{run.path}' has no threshold for exit='{name}' yet; run "
            f"`{as_command('eval-ood', run.path)} --exits`, "
            f'or give one, for example exit={{"{name}": {2 if name == "patience" else 0.9}}}'
        )
    return found[0]
