"""What run.json says a run was evaluated at, in agreement with the tables that are there.

The note of a kind of noise is removed before its tables change and written after them. A table that
is gone, deleted because it was damaged for example, makes every note void: the levels have to be
evaluated again.
"""

from __future__ import annotations

from collections.abc import Sequence

from cudt.evaluation.grid import Grid
from cudt.runs import checksums, examples, tables
from cudt.runs.info import EvaluationNote, RunInfo
from cudt.runs.run import Run

#: The files that evaluations alone write. layers.csv also has rows of training, which no evaluation
#: can write again.
_FILES = (
    *map(
        tables.file_of, ("ood", "layer_metrics", "ratios", "ratio_bins", "constraints", "descent")
    ),
    examples.FILE,
)


def check_tables(run: Run, *, with_exits: bool) -> None:
    """Refuse a run with a damaged table that an evaluation adds to, before anything is replaced."""
    run.check_file(tables.file_of("layers"))
    for name in (*_FILES, *([tables.file_of("exits")] if with_exits else [])):
        if not checksums.is_lost(run.results, name):
            run.check_file(name)


def drop_lost(run: Run) -> None:
    """Forget tables that are gone, and with them every note, whose levels are evaluated again when
    they are needed.
    """
    if any(checksums.is_lost(run.results, name) for name in _FILES):
        # First: if this process ends here, the tables are still missed.
        run.update_info(RunInfo(evaluated={}))
        checksums.forget_lost(run.results, *_FILES)


def evaluated(run: Run) -> dict[str, EvaluationNote]:
    """The levels and noise seeds whose rows are in the tables, by kind of noise."""
    if any(checksums.is_lost(run.results, name) for name in _FILES):
        return {}
    noted, stored = run.info().evaluated, run.read_table("ood")
    rows = {*zip(stored["perturbation"], stored["gamma"], stored["seed"], strict=True)}
    found = {}
    for kind, note in noted.items():
        levels = [
            level
            for level in note.levels
            if all((kind, level, seed) in rows for seed in note.seeds)
        ]
        samples = 0 if _lacks_pictures(run, kind) else note.samples
        if levels:
            found[kind] = note.model_copy(update={"levels": levels, "samples": samples})
    return found


def left(run: Run, grid: Grid, n_samples: int = 0) -> list[str]:
    """The kinds of noise for which levels, noise seeds or pictures of the grid are still
    missing.
    """
    settings = run.recipe.settings.evaluation
    seeds, notes = sorted(grid.seeds(settings)), evaluated(run)
    kinds = []
    for kind in grid.kinds(settings):
        note = notes.get(kind)
        has_levels = note is not None and set(grid.levels(kind, settings)) <= set(note.levels)
        if note is None or not has_levels or note.seeds != seeds or note.samples < n_samples:
            kinds.append(kind)
    return kinds


def begin(run: Run, kind: str, test_data: str) -> None:
    """Remove the note of a kind of noise: while its tables change they do not match it."""
    run.update_info(RunInfo(evaluated=_without(run, kind), test_data=test_data))


def end(run: Run, kind: str, note: EvaluationNote, data_notes: dict[str, int]) -> None:
    """Write the note of a kind of noise, after its tables."""
    changes = {**_without(run, kind), kind: note}
    run.update_info(RunInfo(evaluated=changes, data_notes={**run.info().data_notes, **data_notes}))


def note_after(
    run: Run, kind: str, levels: Sequence[float], seeds: Sequence[int], n_samples: int
) -> EvaluationNote:
    """What a run is evaluated at once these levels are added to its tables."""
    before = evaluated(run).get(kind, EvaluationNote(levels=[], seeds=[], samples=0))
    kept = before.levels if before.seeds == sorted(seeds) else []
    return EvaluationNote(
        levels=sorted({*kept, *levels}), seeds=sorted(seeds), samples=n_samples or before.samples
    )


def _without(run: Run, kind: str) -> dict[str, EvaluationNote]:
    return {name: note for name, note in evaluated(run).items() if name != kind}


def _lacks_pictures(run: Run, kind: str) -> bool:
    """Whether pictures of test examples were deleted."""
    names = [
        name for name in checksums.recorded(run.results) if name.startswith(f"samples/{kind}-")
    ]
    return any(checksums.is_lost(run.results, name) for name in names)
