"""Out-of-distribution evaluation: a trained run on test inputs perturbed at each level of a grid.

One pass over the data measures every example at every level, with one draw of noise scaled by γ.
ood.csv, layers.csv and examples.parquet get the rows; levels that they already have, of the same
weights, data and noise seeds, are not measured again.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cudt.config.levels import parse_levels, scale_of, training_level
from cudt.config.recipe import OtherData
from cudt.config.schema import Evaluation, Weights
from cudt.evaluation import exits, samples
from cudt.evaluation.measure import measure
from cudt.evaluation.tables import layer_rows, merged, ood_row
from cudt.models.layer_losses import LayerwiseLosses
from cudt.noise import NoiseSource, TextNoise, noise_kind
from cudt.runs.info import OtherTest, RunInfo
from cudt.runs.run import EXAMPLES, KEYS, OWN, Run, check_same, open_run
from cudt.tasks.base import SEEN, Split, build_task
from cudt.training.train import load, sigma_of
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError
from cudt.utils.text import Track
from cudt.utils.workers import environments

_SORTED = [*KEYS]


@dataclass(frozen=True)
class Grid:
    """What is evaluated: levels (a list, or a text like 0:2.1:0.15), kinds of noise and noise
    seeds, where None uses those of the run's recipe; test data that are not of the run's own task;
    and whether with early exits, and pictures of some test examples.
    """

    gammas: str | Sequence[float] | None = None
    probabilities: str | Sequence[float] | None = None
    perturbations: Sequence[str] | None = None
    noise_seeds: Sequence[int] | None = None
    on: OtherData | None = None
    exits: bool = False
    n_samples: int = 0
    again: bool = False
    """Whether levels are measured again that the tables already have."""

    def kinds(self, settings: Evaluation) -> list[str]:
        return [*(self.perturbations or settings.perturbations)]

    def seeds(self, settings: Evaluation) -> list[int]:
        return sorted({*(self.noise_seeds or settings.noise_seeds)})

    def levels(self, kind: str, settings: Evaluation) -> list[float]:
        """The levels of one kind: γ for noise on embeddings or pixels, p for noise in texts."""
        scale = scale_of(kind)
        given = {"gammas": self.gammas, "probabilities": self.probabilities}.get(scale.setting)
        return settings.levels(scale) if given is None else parse_levels(given, scale)

    def of(self, run: Run) -> Run:
        """The run on the data of this grid."""
        return replace(run, data=OWN if self.on is None else self.on.name)


def check(run: Run, grid: Grid) -> None:
    """Refuse a run that is not finished or damaged, or whose task lacks texts, pictures or classes
    that are needed.
    """
    info, task = run.finished_info(), run.recipe.settings.task.name
    settings = run.recipe.settings.evaluation
    for kind in grid.kinds(settings):
        grid.levels(kind, settings)
        if isinstance(noise_kind(kind), TextNoise) and not info.has_texts:
            raise UserError(f"'{run.path}': noise '{kind}' changes texts, but task {task} has none")
    if grid.n_samples and not info.has_pictures:
        raise UserError(f"'{run.path}': pictures need a video task, but its task is {task}")
    if grid.exits:
        exits.check(run)
    for name in ("layers.csv", "ood.csv", EXAMPLES):
        run.check(name)


# ---------------------------------------------------------------- what is missing


def missing(run: Run, grid: Grid) -> dict[str, list[float]]:
    """The levels that the tables of a run lack, by kind of noise; `exits` and `samples` are kinds
    without levels.

    The level of training, at which the constraints apply, belongs to every grid.
    """
    run, settings = grid.of(run), run.recipe.settings
    found: dict[str, list[float]] = {}
    for kind in grid.kinds(settings.evaluation):
        asked = grid.levels(kind, settings.evaluation)
        wanted = sorted({*asked, training_level(kind, settings.noise.gamma_train)})
        measured, on_curve = _known(run, kind, grid.seeds(settings.evaluation))
        if not grid.again:
            wanted = [g for g in wanted if g not in measured or (g in asked and g not in on_curve)]
        if wanted:
            found[kind] = wanted
        if grid.n_samples and (grid.again or samples.count(run, kind) < grid.n_samples):
            found["samples"] = []
    if grid.exits and (grid.again or not exits.has_threshold(run)):
        found["exits"] = []
    return found


def _known(run: Run, kind: str, seeds: Sequence[int]) -> tuple[set[float], set[float]]:
    """The levels that were measured with exactly these noise seeds, and those that are in ood.csv:
    one curve never mixes seeds.
    """
    if run.recipe.settings.evaluation.examples == "all":
        keys = {"split": "test", "data": run.data, "weights": run.weights, "noise": kind}
        measured = run.read_examples(["gamma", "seed"], **keys)
    else:
        layers = run.rows("layers")
        measured = layers[layers["noise"] == kind]
    ood = run.rows("ood")
    tables = measured, ood[ood["noise"] == kind]
    one, other = ({*rows["gamma"]} if {*rows["seed"]} == {*seeds} else set() for rows in tables)
    return one, other


# ---------------------------------------------------------------- test data


def evaluate_ood(
    run: Run, grid: Grid, device: DeviceName, data_root: Path | None, track: Track
) -> bool:
    """Write what is missing: the rows of levels, pictures, and what early exits follow from.
    Returns whether anything was. `check` the run and hold its lock.
    """
    wanted = missing(run, grid)
    if not wanted:
        return False
    loaded = _load(grid.of(run), grid, device, data_root, track)
    _record_test_data(loaded, grid)
    for kind, levels in wanted.items():
        if kind == "samples":
            _save_samples(loaded, grid)
        elif kind == "exits":
            noise = run.recipe.settings.noise
            found = loaded.measured("validation", noise.kind, 0, [noise.gamma_train])
            _add_examples(loaded.run, [examples for _, examples in found], _SORTED[:3])
            run.update_info(RunInfo(flops=exits.count_flops(run, loaded.layerwise)))
        else:
            _evaluate_kind(loaded, kind, levels, grid)
    return True


@dataclass(frozen=True)
class _Loaded:
    """A run with its model, on the data that it is measured on."""

    run: Run
    layerwise: LayerwiseLosses
    sigma_x: float
    track: Track

    def measured(
        self, split: Split, kind: str, seed: int, levels: Sequence[float]
    ) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
        """Every example at each level, with its group and the keys of its rows."""
        run, task, noise = self.run, self.layerwise.task, NoiseSource(kind, self.sigma_x, seed)
        data, what = (run.data if split == "test" else OWN), f"{run.label} {kind}"
        asked = (run.recipe.settings, split, noise, levels, self.track, what)
        for level, examples in measure(self.layerwise, *asked).items():
            values = (split, data, run.weights, kind, level, seed)
            keys = dict(zip(KEYS, values, strict=True))
            ids = examples["id"]
            groups = ids.str.rpartition("/")[0] if task.windows_of_clips else ids
            yield keys, examples.assign(**keys, group=groups)


def _load(
    run: Run, grid: Grid, device: DeviceName, data_root: Path | None, track: Track
) -> _Loaded:
    layerwise = load_on_same_data(run, device, data_root)
    sigma_x = sigma_of(run, layerwise)
    if grid.on is not None:
        tokenizer = run.recipe.settings.model.tokenizer_source
        other = build_task(grid.on.task, data_root, tokenizer)
        layerwise.task = layerwise.task.tested_on(other)
    return _Loaded(run, layerwise, sigma_x, track)


def load_on_same_data(run: Run, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The model of a run and its task, whose training data must be as they were."""
    layerwise = load(run, device, data_root)
    data = layerwise.task.fingerprint(SEEN)
    check_same(run, "training data or tokenizer", run.info().training_data, data)
    return layerwise


def _record_test_data(loaded: _Loaded, grid: Grid) -> None:
    """Write into run.json what is tested on, which must not change."""
    run, test_data = loaded.run, loaded.layerwise.task.fingerprint(["test"])
    info = run.info()
    if grid.on is None:
        check_same(run, "test data or tokenizer", info.test_data, test_data)
        run.update_info(RunInfo(test_data=test_data))
    else:
        name, others = grid.on.name, info.other_tests
        before = others[name].test_data if name in others else None
        check_same(run, "test data or tokenizer", before, test_data)
        other = OtherTest(task=grid.on.task.model_dump(mode="json"), test_data=test_data)
        run.update_info(RunInfo(other_tests={**others, name: other}))


def _evaluate_kind(loaded: _Loaded, kind: str, levels: Sequence[float], grid: Grid) -> None:
    """Measure some levels of one kind of noise and write their rows."""
    run, task, info = loaded.run, loaded.layerwise.task, loaded.run.finished_info()
    settings = run.recipe.settings.evaluation
    seeds, asked = grid.seeds(settings), grid.levels(kind, settings)
    parts, ood, layers = list[pd.DataFrame](), [], []
    for seed in seeds:
        for keys, examples in loaded.measured("test", kind, seed, levels):
            parts.append(examples)
            layers += layer_rows(task, info, keys, examples)
            if keys["gamma"] in asked:
                ood.append(ood_row(task, keys, examples))
    # In this order, because the last two say what is done.
    curve = dict(zip(KEYS, ("test", run.data, run.weights, kind), strict=False))
    _add(run, "layers", layers, _SORTED[:5], _unless(curve, seeds))
    _add_examples(run, parts, _SORTED[:5], _unless(curve, seeds))
    _add(run, "ood", ood, _SORTED[:5], _unless(curve, seeds))


Kept = Callable[[pd.DataFrame], pd.DataFrame]
"""The rows of a table that stay beside new ones."""


def _unless(curve: dict[str, str], seeds: Sequence[int]) -> Kept:
    """All rows of a table, but for those of a curve that has other noise seeds."""

    def kept(table: pd.DataFrame) -> pd.DataFrame:
        if table.empty:
            return table
        mine = (table[[*curve]] == pd.Series(curve)).all(axis=1)
        return table if {*table["seed"][mine]} == {*seeds} else table[~mine]

    return kept


def _add(
    run: Run,
    name: str,
    rows: list[dict[str, Any]],
    replaced: list[str],
    kept: Kept = lambda table: table,
) -> None:
    table = merged(kept(run.read_table(name)), pd.DataFrame(rows), replaced)
    if len(table):
        run.write_table(name, table.sort_values(_SORTED, kind="stable"))


def _add_examples(
    run: Run, parts: list[pd.DataFrame], replaced: list[str], kept: Kept = lambda table: table
) -> None:
    if run.recipe.settings.evaluation.examples == "all":
        rows = pd.concat(parts, ignore_index=True).drop(columns="input")
        first = [*KEYS, "id", "group"]
        columns = [*first, *rows.columns.difference(first, sort=False)]
        table = merged(kept(run.read_examples()), rows[columns], replaced)
        run.write_examples(table.sort_values([*_SORTED, "id"], kind="stable"))


def _save_samples(loaded: _Loaded, grid: Grid) -> None:
    settings = loaded.run.recipe.settings.evaluation
    for kind in grid.kinds(settings):
        noise = NoiseSource(kind, loaded.sigma_x, grid.seeds(settings)[0])
        levels = grid.levels(kind, settings)
        samples.save(loaded.run, loaded.layerwise, noise, levels, grid.n_samples)


# ---------------------------------------------------------------- validation data


def evaluate_validation(
    run: Run, gammas: Sequence[float], device: DeviceName, data_root: Path | None, track: Track
) -> None:
    """Add rows on validation data to ood.csv, at each level under the noise of training: for
    selecting among runs, for which test data must not be used. Levels that it has are kept.
    """
    run.finished_info()
    known = {*run.rows("ood", "validation")["gamma"]}
    if lacking := [gamma for gamma in gammas if gamma not in known]:
        loaded = _load(run, Grid(), device, data_root, track)
        found = loaded.measured("validation", run.recipe.settings.noise.kind, 0, lacking)
        rows = [ood_row(loaded.layerwise.task, keys, examples) for keys, examples in found]
        _add(run, "ood", rows, _SORTED[:5])


# ---------------------------------------------------------------- several runs


def evaluate_all(
    runs: Sequence[Run],
    grids: Sequence[Grid],
    n_workers: int,
    device: DeviceName,
    data_root: Path | None,
    track: Track,
    *,
    wait: bool = False,
) -> Iterator[tuple[int, bool | BaseException]]:
    """Evaluate runs one after the other, or several at the same time, each in a process of its own.
    The number of each run when it is done, and what `evaluate_ood` returns or the error that ended
    it; `wait` for a run that another process uses.
    """
    jobs = [
        (run.path, run.weights, grid, device, data_root, wait)
        for run, grid in zip(runs, grids, strict=True)
    ]
    if n_workers == 1:
        for number, job in enumerate(jobs):
            try:
                yield number, _evaluate(*job, track)
            except UserError as error:
                yield number, error
        return
    spawn = multiprocessing.get_context("spawn")
    shares = spawn.SimpleQueue()
    for one in environments(n_workers, device):
        shares.put(one)
    with ProcessPoolExecutor(n_workers, spawn, _take_share, (shares,)) as pool:
        started = {pool.submit(_evaluate, *job): number for number, job in enumerate(jobs)}
        for future in as_completed(started):
            yield started[future], future.exception() or future.result()


def _take_share(shares: Any) -> None:
    """Take one of the environments: cores, and a GPU where there are any."""
    os.environ.update(mine := shares.get())
    torch.set_num_threads(int(mine["OMP_NUM_THREADS"]))


def _evaluate(
    path: Path,
    weights: Weights,
    grid: Grid,
    device: DeviceName,
    data_root: Path | None,
    wait: bool,
    track: Track = lambda items, *_: items,
) -> bool:
    run = open_run(path, weights)
    with run.locked(wait=wait):
        return evaluate_ood(run, grid, device, data_root, track)
