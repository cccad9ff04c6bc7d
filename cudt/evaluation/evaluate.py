"""Out-of-distribution evaluation: a trained run on test inputs perturbed at each level of a grid.

One pass over the data measures every example at every level, with one draw of noise scaled by γ.
ood.csv, layers.csv and examples.parquet get the rows; levels that they already have, of the same
weights, data and noise seeds, are not measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.config.levels import training_level
from cudt.config.schema import Evaluation
from cudt.data.splits import SEEN, Split
from cudt.evaluation import exits, samples
from cudt.evaluation.measure import Pass, led_by_main, measure
from cudt.evaluation.other_data import OtherData
from cudt.evaluation.tables import layer_rows, merged, ood_row
from cudt.models.layer_losses import LayerwiseLosses
from cudt.noise import NoiseSource, TextNoise, noise_kind
from cudt.runs.info import OtherTest, RunInfo
from cudt.runs.run import EXAMPLES, KEYS, OWN, Run, check_same_data, check_same_test, data_root_of
from cudt.tasks.base import build_unread
from cudt.training.train import load, sigma_of
from cudt.utils import processes
from cudt.utils.device import DeviceName, warn_if_slow
from cudt.utils.errors import UserError
from cudt.utils.progress import Track

_SORTED = [*KEYS]


@dataclass(frozen=True)
class Grid:
    """Levels, kinds of noise and noise seeds, where None uses those of the run's recipe; and test
    data that are not of the run's own task.
    """

    gammas: list[float] | None = None
    probabilities: list[float] | None = None
    perturbations: list[str] | None = None
    noise_seeds: list[int] | None = None
    on: OtherData | None = None

    def kinds(self, settings: Evaluation) -> list[str]:
        return self.perturbations or [*settings.perturbations]

    def seeds(self, settings: Evaluation) -> list[int]:
        return sorted({*(self.noise_seeds or settings.noise_seeds)})

    def levels(self, kind: str, settings: Evaluation) -> list[float]:
        """The levels of one kind: γ for noise on embeddings or pixels, p for noise in texts."""
        scale = noise_kind(kind).scale
        given = {"gammas": self.gammas, "probabilities": self.probabilities}.get(scale.setting)
        return settings.levels(scale) if given is None else given

    def of(self, run: Run) -> Run:
        """The run on the data of this grid."""
        return replace(run, data=OWN if self.on is None else self.on.name)


def check(run: Run, grid: Grid, n_samples: int = 0, *, with_exits: bool = False) -> None:
    """Refuse a run that is not finished or damaged, or whose task lacks texts, pictures or classes
    that are needed.
    """
    info, task = run.finished_info(), run.recipe.settings.task.name
    for kind in grid.kinds(run.recipe.settings.evaluation):
        if isinstance(noise_kind(kind), TextNoise) and not info.has_texts:
            raise UserError(
                f"noise '{kind}' changes texts, but task {task} of '{run.path}' has none; "
                "use another --perturbation or change evaluation.perturbations"
            )
    if n_samples and not info.has_pictures:
        raise UserError(
            f"pictures need a video task, but '{run.path}' has task {task}; leave out "
            "--save-samples"
        )
    if with_exits:
        exits.check(run)
    run.check("layers.csv")
    for name in ("ood.csv", EXAMPLES):
        if (run.path / name).is_file():
            run.check(name)


# ---------------------------------------------------------------- test data


def missing(
    run: Run, grid: Grid, n_samples: int = 0, *, with_exits: bool = False, again: bool = False
) -> dict[str, list[float]]:
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
        if not again:
            wanted = [g for g in wanted if g not in measured or (g in asked and g not in on_curve)]
        if wanted:
            found[kind] = wanted
        if n_samples and (again or samples.count(run, kind) < n_samples):
            found["samples"] = []
    if with_exits and (again or not _has_thresholds(run)):
        found["exits"] = []
    return found


def _known(run: Run, kind: str, seeds: Sequence[int]) -> tuple[set[float], set[float]]:
    """The levels that were measured with exactly these noise seeds, and those that are in ood.csv:
    one curve never mixes seeds.
    """
    examples = run.recipe.settings.evaluation.examples
    files = ["ood.csv", *([EXAMPLES] if examples == "all" else [])]
    # The user may have deleted what was damaged.
    if not all((run.path / file).is_file() for file in files):
        return set(), set()
    ood, layers = (rows[rows["noise"] == kind] for rows in map(run.rows, ("ood", "layers")))
    if {*layers["seed"]} != {*seeds}:
        return set(), set()
    measured = {*layers["gamma"]}
    if examples == "all":
        keys = {"split": "test", "data": run.data, "weights": run.weights, "noise": kind}
        measured &= {*run.read_examples(["gamma"], **keys)["gamma"]}
    return measured, {*ood["gamma"]}


def _has_thresholds(run: Run) -> bool:
    has_examples = (run.path / EXAMPLES).is_file() and run.info().flops is not None
    kept = {"split": "validation", "weights": run.weights}
    return has_examples and not run.read_examples(["gamma"], **kept).empty


def evaluate_ood(
    run: Run,
    grid: Grid,
    device: DeviceName,
    data_root: Path | None,
    track: Track,
    n_samples: int = 0,
    *,
    with_exits: bool = False,
    again: bool = False,
) -> bool:
    """Write the rows of the levels that are missing, or of all of them `again`; pictures of
    `n_samples` test examples; and what early exits follow from. Returns whether anything was
    missing. `check` the run and hold its lock.
    """
    asked = missing(run, grid, n_samples, with_exits=with_exits, again=again)
    wanted = processes.from_main(asked)
    if not wanted:
        return False
    run = grid.of(run)
    layerwise = _load(run, grid, device, data_root)
    test_data = layerwise.task.fingerprint(["test"])
    check_same_test(run, test_data)
    with led_by_main(layerwise) as leads:
        if leads:
            _note(run, grid, layerwise, test_data)
            sigma_x = sigma_of(run, layerwise)
            for kind in (one for one in wanted if one not in ("samples", "exits")):
                _evaluate_kind(run, layerwise, kind, wanted[kind], grid, sigma_x, track)
            if "samples" in wanted:
                _save_samples(run, layerwise, grid, sigma_x, n_samples)
            if "exits" in wanted:
                _prepare_exits(run, layerwise, sigma_x, track)
    return True


def _load(run: Run, grid: Grid, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The trained model, on the data that it was trained with, or with other test data."""
    layerwise = load(run, device, data_root)
    precision = run.recipe.settings.evaluation.precision
    warn_if_slow(precision, "evaluation.precision", next(layerwise.parameters()).device)
    check_same_data(run, layerwise.task.fingerprint(SEEN))
    if grid.on is not None:
        tokenizer = run.recipe.settings.model.tokenizer_source
        other = build_unread(grid.on.task, data_root_of(run, data_root), tokenizer)
        layerwise.task = layerwise.task.tested_on(other)
    return layerwise


def _note(run: Run, grid: Grid, layerwise: LayerwiseLosses, test_data: str) -> None:
    """Write into run.json what is tested on, and forget tables that the user has deleted."""
    run.forget(*(name for name in ("ood.csv", EXAMPLES) if not (run.path / name).is_file()))
    info = run.info()
    if grid.on is not None:
        other = OtherTest(task=grid.on.task.model_dump(mode="json"), test_data=test_data)
        run.update_info(RunInfo(other_tests={**info.other_tests, grid.on.name: other}))
    else:
        notes = {**info.data_notes, **layerwise.task.notes()}
        run.update_info(RunInfo(test_data=test_data, data_notes=notes))


def _evaluate_kind(
    run: Run,
    layerwise: LayerwiseLosses,
    kind: str,
    levels: Sequence[float],
    grid: Grid,
    sigma_x: float,
    track: Track,
) -> None:
    """Measure some levels of one kind of noise and write their rows."""
    settings = run.recipe.settings
    seeds, asked = grid.seeds(settings.evaluation), grid.levels(kind, settings.evaluation)
    parts, ood, layers, info = [], [], [], run.finished_info()
    for seed in seeds:
        noise = NoiseSource(kind, sigma_x, seed)
        for level, examples in _measured(run, layerwise, "test", noise, levels, track):
            keys = {name: examples[name].iloc[0] for name in KEYS}
            parts.append(examples)
            layers += layer_rows(layerwise.task, info, keys, examples)
            if level in asked:
                ood.append(ood_row(layerwise.task, keys, examples))
    before = run.rows("layers")
    has_seeds = {*before["seed"][before["noise"] == kind]} == {*seeds}
    # Levels of other noise seeds are not kept beside them.
    replaced = _SORTED[:5] if has_seeds else _SORTED[:4]
    # ood.csv comes last: it says what is done.
    _add_examples(run, parts, replaced)
    _add(run, "layers", layers, replaced)
    _add(run, "ood", ood, replaced)


def _measured(
    run: Run,
    layerwise: LayerwiseLosses,
    split: Split,
    noise: NoiseSource,
    levels: Sequence[float],
    track: Track,
) -> list[tuple[float, pd.DataFrame]]:
    """Every example at each level, with its group and the keys of its rows."""
    task, settings, found = layerwise.task, run.recipe.settings, []
    one = Pass(settings.evaluation, settings.loading.workers, split, noise, levels)
    for level, examples in measure(one, layerwise, track, f"{run.label} {noise.kind}").items():
        keys = (split, run.data if split == "test" else OWN, run.weights, noise.kind, level)
        ids = examples["id"]
        groups = ids.str.rpartition("/")[0] if task.windows_of_clips else ids
        named = dict(zip(KEYS, (*keys, noise.seed), strict=True))
        found.append((level, examples.assign(**named, group=groups)))
    return found


def _add(run: Run, name: str, rows: list[dict[str, Any]], replaced: list[str]) -> None:
    table = merged(run.read_table(name), pd.DataFrame(rows), replaced)
    if len(table):
        run.write_table(name, table.sort_values(_SORTED, kind="stable"))


def _add_examples(run: Run, parts: list[pd.DataFrame], replaced: list[str]) -> None:
    if run.recipe.settings.evaluation.examples == "none":
        return
    rows = pd.concat(parts, ignore_index=True).drop(columns="input")
    before = run.read_examples()
    columns = [*KEYS, "id", "group", *rows.columns.difference([*KEYS, "id", "group"], sort=False)]
    table = merged(before, rows[columns], replaced)
    run.write_examples(table.sort_values([*_SORTED, "id"], kind="stable"))


def _save_samples(
    run: Run, layerwise: LayerwiseLosses, grid: Grid, sigma_x: float, n_samples: int
) -> None:
    settings = run.recipe.settings.evaluation
    for kind in grid.kinds(settings):
        noise = NoiseSource(kind, sigma_x, grid.seeds(settings)[0])
        samples.save(run, layerwise, noise, grid.levels(kind, settings), n_samples)


def _prepare_exits(run: Run, layerwise: LayerwiseLosses, sigma_x: float, track: Track) -> None:
    """Add validation data at γ_train to examples.parquet, which thresholds are chosen on, and the
    FLOPs of the layers to run.json.
    """
    settings = run.recipe.settings
    noise, levels = NoiseSource(settings.noise.kind, sigma_x, 0), [settings.noise.gamma_train]
    found = _measured(run, layerwise, "validation", noise, levels, track)
    _add_examples(run, [examples for _, examples in found], _SORTED[:3])
    run.update_info(RunInfo(flops=exits.count_flops(run, layerwise)))


# ---------------------------------------------------------------- validation data


def evaluate_validation(
    run: Run, gammas: Sequence[float], device: DeviceName, data_root: Path | None, track: Track
) -> None:
    """Add rows on validation data to ood.csv, at each level under the noise of training: for
    selecting among runs, for which test data must not be used. Levels that it has are kept.
    """
    run.finished_info()
    if not (run.path / "ood.csv").is_file():
        run.forget("ood.csv")
    known = {*run.rows("ood", "validation")["gamma"]}
    if not (lacking := [gamma for gamma in gammas if gamma not in known]):
        return
    layerwise = _load(run, Grid(), device, data_root)
    noise = NoiseSource(run.recipe.settings.noise.kind, sigma_of(run, layerwise), 0)
    rows = []
    for _, examples in _measured(run, layerwise, "validation", noise, lacking, track):
        keys = {name: examples[name].iloc[0] for name in KEYS}
        rows.append(ood_row(layerwise.task, keys, examples))
    _add(run, "ood", rows, _SORTED[:5])
