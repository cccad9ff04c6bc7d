"""Which files of a run are damaged, and deleting those that a command writes again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from cudt.doctor.deleting import check_inside
from cudt.doctor.diagnosis import Diagnosis
from cudt.doctor.run_lock import held
from cudt.runs import checksums
from cudt.runs.find import folders_of_results, subfolder
from cudt.runs.info import EVALUATION, EvaluationNote, RunInfo, read_info, write_info
from cudt.runs.repair import remade_by
from cudt.runs.tables import TABLES
from cudt.utils.errors import DamagedFileError, UserError
from cudt.utils.files import delete


def check(run: Path) -> Iterator[Diagnosis]:
    """Every damaged file of a run, with what to do about it."""
    damaged = {folder: _damaged(folder, run) for folder in folders_of_results(run)}
    # Nothing can be written again without the run's weights, recipe and run.json.
    is_usable = all(_is_remade(error, run) for error in damaged[run])
    for folder, errors in damaged.items():
        if errors and is_usable and _has_weights(run, folder) and all(_is_remade(error, folder) for error in errors):
            yield _remade(run, folder, errors)
            continue
        if not errors:
            yield from _not_yet_repaired(run, folder)
        for error in errors:
            yield Diagnosis("problem", f"{error.path}: damaged ({error.reason})", error.advice)


def _not_yet_repaired(run: Path, folder: Path) -> Iterator[Diagnosis]:
    """What an earlier fix has deleted, until the evaluation was repeated."""
    try:
        info = read_info(run, subfolder(folder, run))
    except UserError:  # it is reported by who reads it
        return
    if commands := [command for kind, command in info.repair.items() if kind not in info.evaluated]:
        title = f"{folder}: --fix has deleted damaged tables, which are not written again yet"
        yield Diagnosis("note", title, f"run `{' && '.join(commands)}`")


def _has_weights(run: Path, folder: Path) -> bool:
    """Whether the weights are kept (`checkpoints.keep`) that the results in a folder are of."""
    name = subfolder(folder, run).weights or "*"
    return any((run / "checkpoints").glob(f"{name}.safetensors"))


def _is_remade(error: DamagedFileError, folder: Path) -> bool:
    """Whether a command writes a file again, as long as the files are intact that only training writes.

    With `…`, only the user knows the rest of the command.
    """
    command = remade_by(folder, _name(error, folder))
    return command is not None and "…" not in command


def _damaged(folder: Path, run: Path) -> list[DamagedFileError]:
    """By checksum; files of earlier versions, which have none, by their structure."""
    found = checksums.damaged_files(folder)
    if any(error.path.name == checksums.FILE for error in found):
        return found
    known = {folder / name for name in checksums.recorded(folder)}
    for path, read in _readers(folder, run):
        if path in known or not path.is_file():
            continue
        try:
            read()
        except DamagedFileError as error:
            found.append(error)
        except (UserError, OSError) as error:
            found.append(DamagedFileError(path, str(error), "restore it from a backup"))
    return found


def _readers(folder: Path, run: Path) -> Iterator[tuple[Path, Callable[[], object]]]:
    """What reads each file of a folder of tables."""
    from cudt.config import recipe as recipes
    from cudt.runs.examples import read_examples
    from cudt.runs.tables import read_table

    if folder == run:
        yield run / "run.json", partial(read_info, run)
        yield run / "recipe.yaml", partial(recipes.read_resolved, run / "recipe.yaml")
    else:
        yield folder / EVALUATION, partial(read_info, run, subfolder(folder, run))
    for name in TABLES:
        yield folder / f"{name}.csv", partial(read_table, folder, name)
    yield folder / "examples.parquet", partial(read_examples, folder)
    for path in (folder / "checkpoints").glob("*.safetensors"):
        yield path, partial(_read_weights, path, run)


def _read_weights(path: Path, run: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy"):
            pass
    except SafetensorError as error:
        raise DamagedFileError(path, str(error), f"restore it, or delete {run} to train again") from None


# ---------------------------------------------------------------- files that a command writes again


def _remade(run: Path, folder: Path, damaged: Sequence[DamagedFileError]) -> Diagnosis:
    """One diagnosis for all of them: the same evaluation writes them again."""
    names = [_name(error, folder) for error in damaged]
    commands = " && ".join(_commands(run, folder, names))
    reasons = ", ".join(f"{name} ({error.reason})" for name, error in zip(names, damaged, strict=True))
    return Diagnosis(
        "problem",
        f"{folder}: damaged: {reasons}",
        f"delete {', '.join(names)}, and run `{commands}`",
        partial(_delete, run, folder, names, commands),
    )


def _delete(run: Path, folder: Path, names: Sequence[str], commands: str) -> str:
    """Delete files and what run.json says about them, so that the next evaluation writes them again."""
    with held(run):
        # The exported model is written as a whole.
        tops = dict.fromkeys("model" if name.startswith("model/") else name for name in names)
        check_inside(run, (folder / top for top in tops))
        if "eval-ood" in commands and (again := _evaluations(run, folder)):
            # The next check still says at which levels.
            write_info(run, RunInfo(evaluated={}, repair=again), subfolder(folder, run))
        for top in tops:
            below = [name for name in checksums.recorded(folder) if name == top or name.startswith(f"{top}/")]
            checksums.forget(folder, *below)
            delete(folder / top)
    return f"deleted {', '.join(tops)}; now run `{commands}`"


def _commands(run: Path, folder: Path, names: Sequence[str]) -> list[str]:
    """The commands that write files again; evaluations at the levels that were evaluated."""
    commands = dict.fromkeys(str(remade_by(folder, name)) for name in names)
    evaluation = next((command for command in commands if "eval-ood" in command), None)
    if evaluation is None:
        return list(commands)
    others = [command for command in commands if "eval-ood" not in command]
    return [*(_evaluations(run, folder).values() or [evaluation]), *others]


def _evaluations(run: Path, folder: Path) -> dict[str, str]:
    """By kind of noise, the command that repeats what was evaluated, and what an earlier fix has deleted."""
    info = read_info(run, subfolder(folder, run))
    exits = ["--exits"] if (folder / "exits.csv").exists() else []
    noted = info.evaluated.items()
    return {**info.repair, **{kind: shlex.join([*_evaluation(folder, kind, note), *exits]) for kind, note in noted}}


def _evaluation(folder: Path, kind: str, note: EvaluationNote) -> list[str]:
    from cudt.noise.base import TextNoise, noise_kind

    levels = "--probabilities" if isinstance(noise_kind(kind), TextNoise) else "--gammas"
    seeds = [word for seed in note.seeds for word in ("--noise-seed", str(seed))]
    pictures = ["--save-samples", str(note.samples)] if note.samples else []
    grid = [levels, ",".join(map(repr, note.levels))]
    return ["cudt", "eval-ood", str(folder), "--perturbation", kind, *grid, *seeds, *pictures]


def _name(error: DamagedFileError, folder: Path) -> str:
    return error.path.relative_to(folder).as_posix()
