"""Out-of-distribution evaluation: a trained run on test inputs perturbed at each level of a
grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from cudt.config.levels import training_level
from cudt.data.splits import SEEN, Split
from cudt.evaluation import carry_over, exits, notes, parts
from cudt.evaluation.grid import Grid
from cudt.evaluation.passes import Measuring, loading
from cudt.evaluation.stored import ExampleFile, StoredMeasurement
from cudt.evaluation.tables import (
    example_rows,
    layer_metric_rows,
    layer_rows,
    ood_rows,
    ratio_tables,
)
from cudt.evaluation.team import led_by_main, results
from cudt.method.measurement import Measurement
from cudt.models.layer_losses import LayerwiseLosses
from cudt.noise import NoiseSource, TextNoise, noise_kind
from cudt.runs import checksums
from cudt.runs.data_root import data_root_of
from cudt.runs.examples import Part, Pieces
from cudt.runs.info import RunInfo, SigmaX
from cudt.runs.run import Run, check_same_data, check_same_test
from cudt.runs.tables import file_of
from cudt.tasks.base import Task
from cudt.training import train as training
from cudt.utils.device import DeviceName, warn_if_slow
from cudt.utils.errors import UserError
from cudt.utils.processes import is_main_process
from cudt.utils.progress import Track

#: The measurements at each level, by noise seed.
BySeed = Mapping[int, Sequence[StoredMeasurement]]


def check(run: Run, grid: Grid, n_samples: int = 0, *, with_exits: bool = False) -> None:
    """Refuse a run that is not finished or damaged, or whose task lacks texts, pictures or classes
    that are needed.
    """
    info = run.finished_info()
    task = run.recipe.settings.task.name
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
    notes.check_tables(run, with_exits=with_exits)


def evaluate_ood(
    run: Run,
    grid: Grid,
    device: DeviceName,
    data_root: Path | None,
    track: Track,
    n_samples: int = 0,
    *,
    with_exits: bool = False,
    measured: Path | None = None,
) -> None:
    """Write the tables of test results, and save pictures of `n_samples` test examples. `check` the
    run first.

    Levels that were evaluated before are replaced; with other noise seeds, all levels of that kind
    of noise are. `with_exits` also evaluates early exits. `measured` is a folder in which
    `measure_parts` has stored some levels.
    """
    notes.check_tables(run, with_exits=with_exits)
    layerwise = _load(run, device, data_root)
    test_data = layerwise.task.fingerprint(["test"])
    check_same_test(run, test_data)
    with led_by_main(layerwise) as leads:
        if not leads:
            return
        notes.drop_lost(run)
        for kind in grid.kinds(run.recipe.settings.evaluation):
            _evaluate_kind(run, layerwise, kind, grid, test_data, track, n_samples, measured)
        _summarise(run, layerwise, grid, track)
        if with_exits:
            exits.evaluate_exits(run, layerwise, grid, track)


def evaluate_exits(
    run: Run, grid: Grid, device: DeviceName, data_root: Path | None, track: Track
) -> None:
    """Write exits.csv alone, for a run whose other tables are complete. `check` the run first."""
    layerwise = _load(run, device, data_root)
    check_same_test(run, layerwise.task.fingerprint(["test"]))
    exits.evaluate_exits(run, layerwise, grid, track)


def parts_of(run: Run, grid: Grid) -> list[Part]:
    """Everything that an evaluation measures on test data: each level of each kind of noise, for
    each noise seed.
    """
    settings = run.recipe.settings.evaluation
    return [
        Part(kind, level, seed)
        for kind in grid.kinds(settings)
        for seed in grid.seeds(settings)
        for level in _levels(run, grid, kind)
    ]


def measure_parts(
    run: Run,
    wanted: Sequence[Part],
    device: DeviceName,
    data_root: Path | None,
    track: Track,
    folder: Path,
) -> None:
    """Measure some of `parts_of` a run and store them in a folder, for `evaluate_ood` to read."""
    layerwise = _load(run, device, data_root)
    for kind, seed in dict.fromkeys((part.perturbation, part.seed) for part in wanted):
        levels = [part.gamma for part in wanted if (part.perturbation, part.seed) == (kind, seed)]
        with ExampleFile(run.results) as file:
            found = _measure(run, layerwise, file, "test", kind, seed, levels, track)
            for level, one in zip(levels, found, strict=True):
                parts.write(folder, Part(kind, level, seed), one)


def _levels(run: Run, grid: Grid, kind: str) -> list[float]:
    """The levels asked for, and that of training, where the constraints apply; the curve keeps its
    grid.
    """
    settings = run.recipe.settings
    return sorted(
        {*grid.levels(kind, settings.evaluation), training_level(kind, settings.noise.gamma_train)}
    )


def _evaluate_kind(
    run: Run,
    layerwise: LayerwiseLosses,
    kind: str,
    grid: Grid,
    test_data: str,
    track: Track,
    n_samples: int,
    measured: Path | None,
) -> None:
    """Evaluate under one kind of noise and write its rows."""
    settings = run.recipe.settings.evaluation
    asked, seeds, levels = (
        grid.levels(kind, settings),
        grid.seeds(settings),
        _levels(run, grid, kind),
    )
    replaced = ["perturbation", "gamma"] if _has_seeds(run, kind, seeds) else ["perturbation"]
    with ExampleFile(run.results) as file:
        by_seed = {
            seed: _test(run, layerwise, file, kind, seed, levels, track, measured) for seed in seeds
        }
        tables = _rows(layerwise.task, kind, asked, levels, by_seed)
        tables["constraints"] = _constraints(run, layerwise.task, kind, levels, by_seed)
        note = notes.note_after(run, kind, asked, seeds, n_samples)
        notes.begin(run, kind, test_data)
        # Before ood.csv: if this process ends here, the next evaluation decides by ood.csv what to
        # replace.
        run.merge_examples(_scores(kind, asked, levels, by_seed), replaced)
    for name, rows in tables.items():
        if not rows.empty:
            run.merge_table(name, rows, ["split", *replaced] if name == "layers" else replaced)
    if n_samples:
        # Imported here: it imports matplotlib, which only pictures need.
        from cudt.evaluation import samples

        samples.save(run, layerwise, _noise(run, kind, seeds[0]), asked, n_samples)
    notes.end(run, kind, note, layerwise.task.notes())


def _rows(
    task: Task, kind: str, asked: Sequence[float], levels: Sequence[float], by_seed: BySeed
) -> dict[str, pd.DataFrame]:
    """The rows of each table; curves only at the levels asked for."""
    curve = pd.concat(
        [ood_rows(task, kind, seed, measured, levels) for seed, measured in by_seed.items()]
    )
    over_seeds = _over_seeds(levels, by_seed)
    return {
        "ood": curve[curve["gamma"].isin(asked)],
        "layers": layer_rows(task, kind, over_seeds),
        "layer_metrics": layer_metric_rows(task, kind, over_seeds),
        **ratio_tables(kind, over_seeds),
    }


def _scores(
    kind: str, asked: Sequence[float], levels: Sequence[float], by_seed: BySeed
) -> dict[Part, Pieces]:
    """The scores of single examples at the levels asked for."""
    return {
        Part(kind, gamma, seed): partial(example_rows, one)
        for seed, measured in by_seed.items()
        for gamma, one in zip(levels, measured, strict=True)
        if gamma in asked
    }


def _over_seeds(levels: Sequence[float], by_seed: BySeed) -> dict[float, StoredMeasurement]:
    """The examples of all noise seeds at each level."""
    return {
        gamma: StoredMeasurement.joined(parts)
        for gamma, *parts in zip(levels, *by_seed.values(), strict=True)
    }


def _constraints(
    run: Run, task: Task, kind: str, levels: Sequence[float], by_seed: BySeed
) -> pd.DataFrame:
    """The rows of constraints.csv; standard errors are over examples, or over the clips that they
    are windows of.
    """
    over_seeds = _over_seeds(levels, by_seed).items()
    # One level after the other: each has the names of all examples in order.
    grouped = ((gamma, one.grouped(task.independent(one.ids))) for gamma, one in over_seeds)
    return carry_over.constraint_rows(run, kind, grouped)


def _summarise(run: Run, layerwise: LayerwiseLosses, grid: Grid, track: Track) -> None:
    """Write descent.csv from constraints.csv, and measure what is missing for it, once."""
    if run.read_table("constraints").empty:
        return
    noise = run.recipe.settings.noise
    found = run.read_table("constraints")
    if not ((found["perturbation"] == noise.kind) & (found["gamma"] == noise.gamma_train)).any():
        levels, seeds = [noise.gamma_train], grid.seeds(run.recipe.settings.evaluation)
        with ExampleFile(run.results) as file:
            by_seed = {
                seed: _measure(run, layerwise, file, "test", noise.kind, seed, levels, track)
                for seed in seeds
            }
            rows = _constraints(run, layerwise.task, noise.kind, levels, by_seed)
        run.merge_table("constraints", rows, ["perturbation", "gamma"])
    known = carry_over.seen_losses(run) or carry_over.seen_losses(run.on(None))
    seen = known or {split: _measure_seen(run, layerwise, split, track) for split in SEEN}
    run.write_table("descent", carry_over.summary_rows(run, seen))


def _measure_seen(run: Run, layerwise: LayerwiseLosses, split: Split, track: Track) -> list[float]:
    """f_1 … f_L on data that training used, at γ_train, with the noise that training validates
    with.

    Of the training data, as many examples as validation data has.
    """
    task, settings = layerwise.task, run.recipe.settings
    indices = carry_over.spaced(len(task.examples(split)), len(task.examples("validation")))
    noise = NoiseSource(settings.noise.kind, run.finished_info().sigma_x.training, "validation")
    one = Measuring(split, *loading(settings), noise, [settings.noise.gamma_train], only=indices)
    measured = _tracked(run, layerwise, one, f"{split} data", track)
    return Measurement.joined([part for (part,) in measured]).layer_losses.tolist()


def evaluate_validation(
    run: Run, gammas: Sequence[float], device: DeviceName, data_root: Path | None, track: Track
) -> None:
    """Write `validation.csv`: the run's weights on validation data at each level, under the noise
    of training.

    For selecting among runs, for which test data must not be used. Levels in the file are kept.
    """
    run.finished_info()
    checksums.forget_lost(run.results, file_of("validation"))
    missing = [gamma for gamma in gammas if gamma not in set(run.read_table("validation")["gamma"])]
    if not missing:
        return
    layerwise = _load(run, device, data_root)
    kind, seed = run.recipe.settings.noise.kind, 0
    with ExampleFile(run.results) as file:
        measured = _measure(run, layerwise, file, "validation", kind, seed, missing, track)
        rows = ood_rows(layerwise.task, kind, seed, measured, missing)
    run.merge_table("validation", rows, ["perturbation", "gamma"])


def load_for_noise(run: Run, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The trained model, with σ_x of its weights in run.json; hold the run's lock."""
    layerwise = training.load(run, device, data_root)
    if run.other_weights and layerwise.model.signal_is_learned and is_main_process():
        before, now = run.finished_info().sigma_x.training, training.sigma_of(run, layerwise)
        run.update_info(RunInfo(sigma_x=SigmaX(training=before, evaluation=now)))
    return layerwise


def _load(run: Run, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The trained model, on the data that it was trained with; with other test data if the run
    names some.
    """
    layerwise = load_for_noise(run, device, data_root)
    precision = run.recipe.settings.evaluation.precision
    warn_if_slow(precision, "evaluation.precision", next(layerwise.parameters()).device)
    check_same_data(run, layerwise.task.fingerprint(SEEN))
    if run.other_data is not None:
        with data_root_of(run, data_root) as root:
            tokenizer = run.recipe.settings.model.tokenizer_source
            layerwise.task = run.other_data.put_into(layerwise.task, root, tokenizer)
    return layerwise


def _noise(run: Run, kind: str, seed: int) -> NoiseSource:
    return NoiseSource(kind, run.finished_info().sigma_x.evaluation, seed)


def _has_seeds(run: Run, kind: str, seeds: Sequence[int]) -> bool:
    """Whether the rows in ood.csv have the same noise seeds; one curve must not mix levels of
    different seeds.
    """
    stored = run.read_table("ood")
    return set(stored[stored["perturbation"] == kind]["seed"]) == set(seeds)


def _test(
    run: Run,
    layerwise: LayerwiseLosses,
    file: ExampleFile,
    kind: str,
    seed: int,
    levels: Sequence[float],
    track: Track,
    folder: Path | None,
) -> list[StoredMeasurement]:
    """Every test example at each level: read from the folder where it has them, else measured."""
    found: dict[float, StoredMeasurement] = {}
    for level in levels if folder else []:
        if folder and (one := parts.read(folder, Part(kind, level, seed))) is not None:
            (found[level],) = file.add([[one]], len(one.ids))
    if left := [level for level in levels if level not in found]:
        measured = _measure(run, layerwise, file, "test", kind, seed, left, track)
        found |= dict(zip(left, measured, strict=True))
    return [found[level] for level in levels]


def _measure(
    run: Run,
    layerwise: LayerwiseLosses,
    file: ExampleFile,
    split: Split,
    kind: str,
    seed: int,
    levels: Sequence[float],
    track: Track,
) -> list[StoredMeasurement]:
    """Every example of a split at each level, for one noise seed."""
    task, noise, loaded = layerwise.task, noise_kind(kind), loading(run.recipe.settings)
    if not isinstance(noise, TextNoise):
        one = Measuring(split, *loaded, _noise(run, kind, seed), levels)
        return file.add(_tracked(run, layerwise, one, kind, track), len(one.examples(task)))
    measured = []
    for level in levels:
        what = f"{kind} {noise.scale.symbol} = {level:g}"
        one = Measuring(split, *loaded, corrupted=(kind, level, seed))
        measured += file.add(_tracked(run, layerwise, one, what, track), len(one.examples(task)))
    return measured


def _tracked(
    run: Run, layerwise: LayerwiseLosses, one: Measuring, what: str, track: Track
) -> Iterable[list[Measurement]]:
    """The measurements of one pass, with progress."""
    total = one.total(layerwise.task)
    return track(results(one, layerwise, total), total, f"{run.label} {what}")
