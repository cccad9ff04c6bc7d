"""Out-of-distribution evaluation: a trained run on test inputs perturbed at each level of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.config.schema import Evaluation
from cudt.data.batching import Batch, batches, n_batches
from cudt.data.splits import SEEN, Split
from cudt.evaluation import intervals, ratios, samples
from cudt.method.measurement import Measurement
from cudt.models.layer_losses import LayerwiseLosses, measure
from cudt.noise.base import TextNoise, noise_kind, training_level
from cudt.noise.source import NoiseSource
from cudt.runs import trained
from cudt.runs.info import EvaluationNote, RunInfo
from cudt.runs.run import EXAMPLES, TABLES, Run, check_same_data, check_same_test
from cudt.tasks.base import Task
from cudt.utils import device
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError

Track = Callable[[Iterable[Batch], int, str], Iterable[Batch]]


@dataclass(frozen=True)
class Grid:
    """Which levels, kinds and draws of noise; None stands for what the run's recipe says."""

    gammas: list[float] | None = None
    probabilities: list[float] | None = None
    perturbations: list[str] | None = None
    noise_seeds: list[int] | None = None

    def kinds(self, settings: Evaluation) -> list[str]:
        return self.perturbations or [*settings.perturbations]

    def levels(self, kind: str, settings: Evaluation) -> list[float]:
        """γ of noise on embeddings or pixels, p of noise in texts."""
        scale = noise_kind(kind).scale
        given = {"gammas": self.gammas, "probabilities": self.probabilities}.get(scale.setting)
        return settings.levels(scale) if given is None else given


def check(run: Run, grid: Grid, n_samples: int = 0) -> None:
    """Refuse a run that has no verdict yet, no texts to damage or nothing to look at, before anything is evaluated."""
    info = run.finished_info()
    task = run.recipe.settings.task.name
    for kind in grid.kinds(run.recipe.settings.evaluation):
        if isinstance(noise_kind(kind), TextNoise) and not info.has_texts:
            raise UserError(
                f"--perturbation {kind}: '{run.path}' has task {task}, which has no texts; take another noise"
            )
    if n_samples and not info.has_pictures:
        raise UserError(f"--save-samples: '{run.path}' has task {task}, which has nothing to look at; it is for video")


def evaluate_ood(
    run: Run, grid: Grid, where: DeviceName, data_root: Path | None, track: Track, n_samples: int = 0
) -> None:
    """Fill the tables that hold test results, and save pictures of some test examples.

    Levels that were evaluated before are replaced; with other noise seeds, all levels of that kind of noise are.
    """
    check(run, grid, n_samples)
    settings = run.recipe.settings.evaluation
    layerwise = trained.load(run, data_root, device.choose(where))
    task = layerwise.task
    check_same_data(run, task.fingerprint(SEEN))
    test_data = task.fingerprint(["test"])
    check_same_test(run, test_data)
    for kind in grid.kinds(settings):
        asked = grid.levels(kind, settings)
        # Layer losses are wanted at the training level too, where the constraints hold; the curve keeps its grid.
        levels = sorted({*asked, training_level(kind, run.recipe.settings.noise.gamma_train)})
        seeds = list(dict.fromkeys(grid.noise_seeds or settings.noise_seeds))
        by_seed = [_measure(run, layerwise, "test", kind, seed, levels, track) for seed in seeds]
        ood = pd.concat([_ood_rows(task, kind, *pair, levels) for pair in zip(seeds, by_seed, strict=True)])
        over_seeds = {gamma: Measurement.joined(parts) for gamma, *parts in zip(levels, *by_seed, strict=True)}
        tables = {
            "ood": ood[ood["gamma"].isin(asked)],
            "layers": _layer_rows(task, kind, over_seeds),
            "layer_metrics": _layer_metric_rows(task, kind, over_seeds),
            **_ratio_tables(kind, over_seeds),
        }
        replaced = ["perturbation", "gamma"] if _has_seeds(run, kind, seeds) else ["perturbation"]
        note = _note(run, kind, asked, seeds, n_samples)
        # While tables change they are not what the note says.
        run.update_info(RunInfo(evaluated=_notes_without(run, kind), test_data=test_data))
        scores = pd.concat([_example_rows(kind, *pair, levels) for pair in zip(seeds, by_seed, strict=True)])
        # Before ood.csv, by which the next evaluation tells what to replace if this one ends here.
        run.merge_examples(scores[scores["gamma"].isin(asked)], replaced)
        for name, rows in tables.items():
            if not rows.empty:
                run.merge_table(name, rows, ["split", *replaced] if name == "layers" else replaced)
        if n_samples:
            samples.save(run, layerwise, _noise(run, kind, seeds[0]), asked, n_samples)
        run.update_info(
            RunInfo(
                evaluated={**_notes_without(run, kind), kind: note},
                data_notes={**run.info().data_notes, **task.notes()},
            )
        )


def left(run: Run, grid: Grid, n_samples: int = 0) -> list[str]:
    """The kinds of noise under which a run was not yet evaluated at all levels, by the same draws, with pictures."""
    settings = run.recipe.settings.evaluation
    seeds = sorted(set(grid.noise_seeds or settings.noise_seeds))
    kinds = []
    for kind in grid.kinds(settings):
        note = run.info().evaluated.get(kind)
        has_levels = note is not None and set(grid.levels(kind, settings)) <= set(note.levels)
        if note is None or not has_levels or note.seeds != seeds or note.samples < n_samples:
            kinds.append(kind)
    return kinds


def _note(run: Run, kind: str, levels: Sequence[float], seeds: Sequence[int], n_samples: int) -> EvaluationNote:
    """What a run is evaluated at, when its tables hold some levels more."""
    before = run.info().evaluated.get(kind, EvaluationNote(levels=[], seeds=[], samples=0))
    kept = before.levels if before.seeds == sorted(set(seeds)) else []
    return EvaluationNote(
        levels=sorted({*kept, *levels}), seeds=sorted(set(seeds)), samples=n_samples or before.samples
    )


def _notes_without(run: Run, kind: str) -> dict[str, EvaluationNote]:
    return {name: note for name, note in run.info().evaluated.items() if name != kind}


def evaluate_validation(
    run: Run, gammas: Sequence[float], where: DeviceName, data_root: Path | None, track: Track
) -> None:
    """Fill `validation.csv`: the best weights on validation data at each level, under the noise of training.

    For choosing between runs, which test data must not do. Levels that are there already are kept.
    """
    run.finished_info()
    missing = [gamma for gamma in gammas if gamma not in set(run.read_table("validation")["gamma"])]
    if not missing:
        return
    layerwise = trained.load(run, data_root, device.choose(where))
    check_same_data(run, layerwise.task.fingerprint(SEEN))
    kind, seed = run.recipe.settings.noise.kind, 0
    measured = _measure(run, layerwise, "validation", kind, seed, missing, track)
    rows = _ood_rows(layerwise.task, kind, seed, measured, missing)
    run.merge_table("validation", rows, ["perturbation", "gamma"])


def _noise(run: Run, kind: str, seed: int) -> NoiseSource:
    return NoiseSource(kind, run.finished_info().sigma_x.evaluation, seed)


def _has_seeds(run: Run, kind: str, seeds: Sequence[int]) -> bool:
    """Whether what is there was drawn with the same seeds; levels that were not must not stand in one curve."""
    stored = run.read_table("ood")
    return set(stored[stored["perturbation"] == kind]["seed"]) == set(seeds)


def _measure(
    run: Run, layerwise: LayerwiseLosses, split: Split, kind: str, seed: int, levels: Sequence[float], track: Track
) -> list[Measurement]:
    """Every example of a split at each level, for one draw of the noise."""
    task, size = layerwise.task, run.recipe.settings.evaluation.batch_size
    place = next(layerwise.parameters()).device

    def tracked(examples: Sequence[Any], what: str) -> Iterable[Batch]:
        return track(batches(task, examples, size, place), n_batches(examples, size), f"{run.path.name} {what}")

    noise = noise_kind(kind)
    if not isinstance(noise, TextNoise):
        return measure(layerwise, tracked(task.examples(split), kind), _noise(run, kind, seed), levels)
    measured = []
    for level in levels:
        examples = task.corrupted(split, noise, level, seed)
        measured += measure(layerwise, tracked(examples, f"{kind} {noise.scale.symbol} = {level:g}"), None, [0.0])
    return measured


def _ood_rows(
    task: Task, kind: str, seed: int, measured: Sequence[Measurement], levels: Sequence[float]
) -> pd.DataFrame:
    """The last layer's metric and loss at each level, each with the ends of its interval."""
    rows = []
    for gamma, level in zip(levels, measured, strict=True):
        n = level.losses.shape[1]
        score = level.layer_scores[-1].item()
        ends = (
            intervals.wilson(score, n)
            if task.scores_are_shares
            else intervals.bootstrap(level.scores[-1], level.weights)
        )
        values = {name: [_metrics(task, one)[name] for one in (score, *ends)] for name in _metrics(task, score)}
        values["loss"] = [level.layer_losses[-1].item(), *intervals.bootstrap(level.losses[-1], level.weights)]
        for name, (value, *interval) in values.items():
            named = zip((name, f"{name}_low", f"{name}_high"), (value, *sorted(interval)), strict=True)
            rows += [(kind, gamma, seed, *pair, n) for pair in named]
    return pd.DataFrame(rows, columns=TABLES["ood"])


def _example_rows(kind: str, seed: int, measured: Sequence[Measurement], levels: Sequence[float]) -> pd.DataFrame:
    """The last layer's score of each example at each level, and how much it counts."""
    parts = [
        pd.DataFrame({"gamma": gamma, "id": level.ids, "weight": level.weights, "score": level.scores[-1]})
        for gamma, level in zip(levels, measured, strict=True)
    ]
    return pd.concat(parts).assign(perturbation=kind, seed=seed)[list(EXAMPLES)]


def _metrics(task: Task, score: float) -> dict[str, float]:
    """The task's metric and whatever else it makes of the mean score, by name."""
    return {task.metric_name: task.metric(score), **task.further_metrics(score)}


def _layer_rows(task: Task, kind: str, measured: dict[float, Measurement]) -> pd.DataFrame:
    """Each layer's loss and metric at each level."""
    rows = []
    for gamma, level in measured.items():
        metrics = [task.metric(score) for score in level.layer_scores.tolist()]
        for layer, (loss, metric) in enumerate(zip(level.layer_losses.tolist(), metrics, strict=True), 1):
            rows.append(("test", kind, gamma, layer, loss, metric))
    return pd.DataFrame(rows, columns=TABLES["layers"])


def _layer_metric_rows(task: Task, kind: str, measured: dict[float, Measurement]) -> pd.DataFrame:
    """What the task further makes of each layer's mean score; no rows where that is nothing."""
    rows = []
    for gamma, level in measured.items():
        for layer, score in enumerate(level.layer_scores.tolist(), 1):
            rows += [(kind, gamma, layer, name, value) for name, value in task.further_metrics(score).items()]
    return pd.DataFrame(rows, columns=TABLES["layer_metrics"])


def _ratio_tables(kind: str, measured: dict[float, Measurement]) -> dict[str, pd.DataFrame]:
    """The distribution of f_l / f_{l−1} over examples: by layer and for all (layer 0), and its histogram."""
    summaries: list[tuple[Any, ...]] = []
    bins: list[tuple[Any, ...]] = []
    for gamma, level in measured.items():
        by_layer = ratios.layer_ratios(level.losses)
        if not len(by_layer):
            continue
        for layer, values in [(0, by_layer), *enumerate(by_layer, 2)]:
            summaries += [(kind, gamma, layer, name, value) for name, value in ratios.summary(values).items()]
        bins += [(kind, gamma, *row) for row in ratios.histogram(by_layer)]
    return {
        "ratios": pd.DataFrame(summaries, columns=TABLES["ratios"]),
        "ratio_bins": pd.DataFrame(bins, columns=TABLES["ratio_bins"]),
    }
