"""Out-of-distribution evaluation: a trained run on test inputs perturbed at each level of a grid.

One pass over the data measures every example at every level, with one draw of noise scaled by γ.
ood.csv, layers.csv and examples.parquet get the rows; levels that they already have, of the same
weights, data and noise seeds, are not measured again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.config.levels import training_level
from cudt.config.other_data import OtherData
from cudt.config.schema import Evaluation
from cudt.evaluation import exits, samples
from cudt.evaluation.measure import Pass, led_by_main, measure
from cudt.evaluation.tables import layer_rows, merged, ood_row
from cudt.models.layer_losses import LayerwiseLosses
from cudt.noise import NoiseSource, TextNoise, noise_kind
from cudt.runs.info import OtherTest, RunInfo
from cudt.runs.run import EXAMPLES, KEYS, OWN, Run, check_same
from cudt.tasks.base import SEEN, Split, build_task
from cudt.training.train import load, sigma_of
from cudt.utils import processes
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError
from cudt.utils.text import Track

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
    loaded = _load(grid.of(run), grid, device, data_root, track)
    info, test_data = run.info(), loaded.layerwise.task.fingerprint(["test"])
    others = {name: one.test_data for name, one in info.other_tests.items()}
    before = {OWN: info.test_data, **others}.get(loaded.run.data)
    check_same(run, "test data or tokenizer", before, test_data)
    with led_by_main(loaded.layerwise) as leads:
        if leads:
            _begin(loaded, grid)
            for kind in (one for one in wanted if one not in ("samples", "exits")):
                _evaluate_kind(loaded, kind, wanted[kind], grid)
            if "samples" in wanted:
                _save_samples(loaded, grid, n_samples)
            if "exits" in wanted:
                _prepare_exits(loaded)
            _note_data(loaded)
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
        run, task, settings = self.run, self.layerwise.task, self.run.recipe.settings
        noise, workers = NoiseSource(kind, self.sigma_x, seed), settings.loading.workers
        one = Pass(settings.evaluation, workers, split, noise, levels)
        data = run.data if split == "test" else OWN
        found = measure(one, self.layerwise, self.track, f"{run.label} {kind}")
        for level, examples in found.items():
            values = (split, data, run.weights, kind, level, seed)
            keys = dict(zip(KEYS, values, strict=True))
            ids = examples["id"]
            groups = ids.str.rpartition("/")[0] if task.windows_of_clips else ids
            yield keys, examples.assign(**keys, group=groups)


def _load(
    run: Run, grid: Grid, device: DeviceName, data_root: Path | None, track: Track
) -> _Loaded:
    layerwise = load(run, device, data_root)
    data = layerwise.task.fingerprint(SEEN)
    check_same(run, "training data or tokenizer", run.info().training_data, data)
    sigma_x = sigma_of(run, layerwise) if processes.is_main_process() else 0.0
    if grid.on is not None:
        tokenizer = run.recipe.settings.model.tokenizer_source
        other = build_task(grid.on.task, data_root, tokenizer)
        layerwise.task = layerwise.task.tested_on(other)
    return _Loaded(run, layerwise, sigma_x, track)


def _begin(loaded: _Loaded, grid: Grid) -> None:
    """Write into run.json what is tested on, and forget tables that the user has deleted."""
    run, test_data = loaded.run, loaded.layerwise.task.fingerprint(["test"])
    run.delete(*(name for name in ("ood.csv", EXAMPLES) if not (run.path / name).is_file()))
    if grid.on is None:
        run.update_info(RunInfo(test_data=test_data))
    else:
        other = OtherTest(task=grid.on.task.model_dump(mode="json"), test_data=test_data)
        run.update_info(RunInfo(other_tests={**run.info().other_tests, grid.on.name: other}))


def _note_data(loaded: _Loaded) -> None:
    """Write into run.json how many test examples were truncated or skipped."""
    if loaded.run.data == OWN:
        notes = {**loaded.run.info().data_notes, **loaded.layerwise.task.notes()}
        loaded.run.update_info(RunInfo(data_notes=notes))


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
    before = run.rows("layers")
    has_seeds = {*before["seed"][before["noise"] == kind]} == {*seeds}
    # Levels of other noise seeds are not kept beside them.
    replaced = _SORTED[:5] if has_seeds else _SORTED[:4]
    # ood.csv comes last: it says what is done.
    _add_examples(run, parts, replaced)
    _add(run, "layers", layers, replaced)
    _add(run, "ood", ood, replaced)


def _add(run: Run, name: str, rows: list[dict[str, Any]], replaced: list[str]) -> None:
    table = merged(run.read_table(name), pd.DataFrame(rows), replaced)
    if len(table):
        run.write_table(name, table.sort_values(_SORTED, kind="stable"))


def _add_examples(run: Run, parts: list[pd.DataFrame], replaced: list[str]) -> None:
    if run.recipe.settings.evaluation.examples == "all":
        rows = pd.concat(parts, ignore_index=True).drop(columns="input")
        first = [*KEYS, "id", "group"]
        columns = [*first, *rows.columns.difference(first, sort=False)]
        table = merged(run.read_examples(), rows[columns], replaced)
        run.write_examples(table.sort_values([*_SORTED, "id"], kind="stable"))


def _save_samples(loaded: _Loaded, grid: Grid, number: int) -> None:
    settings = loaded.run.recipe.settings.evaluation
    for kind in grid.kinds(settings):
        noise = NoiseSource(kind, loaded.sigma_x, grid.seeds(settings)[0])
        levels = grid.levels(kind, settings)
        samples.save(loaded.run, loaded.layerwise, noise, levels, number)


def _prepare_exits(loaded: _Loaded) -> None:
    """Add validation data at γ_train to examples.parquet, which thresholds are chosen on, and the
    FLOPs of the layers to run.json.
    """
    run, noise = loaded.run, loaded.run.recipe.settings.noise
    found = loaded.measured("validation", noise.kind, 0, [noise.gamma_train])
    _add_examples(run, [examples for _, examples in found], _SORTED[:3])
    run.update_info(RunInfo(flops=exits.count_flops(run, loaded.layerwise)))


# ---------------------------------------------------------------- validation data


def evaluate_validation(
    run: Run, gammas: Sequence[float], device: DeviceName, data_root: Path | None, track: Track
) -> None:
    """Add rows on validation data to ood.csv, at each level under the noise of training: for
    selecting among runs, for which test data must not be used. Levels that it has are kept.
    """
    run.finished_info()
    if not (run.path / "ood.csv").is_file():
        run.delete("ood.csv")
    known = {*run.rows("ood", "validation")["gamma"]}
    if lacking := [gamma for gamma in gammas if gamma not in known]:
        loaded = _load(run, Grid(), device, data_root, track)
        found = loaded.measured("validation", run.recipe.settings.noise.kind, 0, lacking)
        rows = [ood_row(loaded.layerwise.task, keys, examples) for keys, examples in found]
        _add(run, "ood", rows, _SORTED[:5])
