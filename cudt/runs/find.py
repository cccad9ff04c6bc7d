"""Run folders: the one that belongs to a recipe, an existing one, and all below a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from cudt.config import other_data
from cudt.config import recipe as recipes
from cudt.config.other_data import OtherData, validated
from cudt.config.recipe import NamedRecipe
from cudt.config.schema import Weights
from cudt.runs import checksums
from cudt.runs.info import EVALUATION, FORMAT, Subfolder, read_format, read_info
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from cudt.utils.files import files_below
from cudt.utils.shown import as_command, is_text, shown_path


def run_for(recipe: NamedRecipe, out: Path) -> Run:
    """The run of a recipe below the folder `out`; the same recipe is the same run. Creates
    nothing.
    """
    return Run(out / recipe.name / f"{recipe.settings.objective}-{recipe.identity()}", recipe)


def open_run(path: Path, weights: Weights | None = None) -> Run:
    """The run in an existing folder, with its own weights unless others are named.

    The subfolder `last` or `best` of a run is the run with these weights, and `on-NAME` the run on
    these data.
    """
    if path != (around := run_folder(path)):
        return _open_inside(path, around, weights)
    if not path.is_dir():
        raise UserError(f"run folder '{path}' does not exist")
    if not is_text(str(path)):
        # It could be in no table and on no page.
        raise UserError(f"{shown_path(path)}: the folder's name is not valid UTF-8; rename it")
    if not (path / "recipe.yaml").is_file() or not (path / "run.json").is_file():
        inside = [found.parent for found in files_below(path, ["run.json"])]
        hint = (
            f"; {len(inside)} run folders are below it, for example {inside[0]}" if inside else ""
        )
        raise UserError(f"'{path}' is not a run folder (recipe.yaml or run.json is missing){hint}")
    _check_format(path)
    checksums.check_file(path, "recipe.yaml")
    try:
        return Run(path, recipes.load_resolved(path / "recipe.yaml")).with_weights(weights)
    except UserError as error:
        between = "\n  " if "\n" in str(error) else " "
        raise UserError(
            f"{error}{between}(written by another version of cudt, edited since, or its plug-in "
            "is not installed)"
        ) from None


def _open_inside(path: Path, around: Path, weights: Weights | None) -> Run:
    """The run of a subfolder of its results."""
    if is_of_other_data(path):
        noted = read_info(around, subfolder(path, around)).other_task or {}
        return open_run(path.parent, weights).on(
            OtherData(path.name.removeprefix(other_data.PREFIX), validated(noted, str(path)))
        )
    return open_run(around, weights or ("last" if path.name == "last" else "best"))


def run_folder(path: Path) -> Path:
    """The path itself, or the run folder around it if it has results of weights or data that are
    not the run's own.
    """
    folder = path.parent if is_of_other_data(path) else path
    if (
        folder.name in get_args(Weights)
        and path.is_dir()
        and (folder.parent / "run.json").is_file()
    ):
        return folder.parent
    return folder


def is_of_other_data(path: Path) -> bool:
    """Whether a folder has results on data that are not the run's own."""
    return path.name.startswith(other_data.PREFIX) and (path / EVALUATION).is_file()


def subfolder(path: Path, run: Path) -> Subfolder:
    """Which results of a run a folder has."""
    parts = path.relative_to(run).parts
    weights: list[Weights] = [one for one in get_args(Weights) if one in parts]
    return Subfolder(weights[0] if weights else None, parts[-1] if is_of_other_data(path) else None)


def folders_of_results(run: Path) -> list[Path]:
    """The run folder, and its subfolders with results of weights or data that are not the run's
    own.
    """
    own = [run, *(run / name for name in get_args(Weights) if (run / name).is_dir())]
    others = [
        path
        for folder in own
        for path in sorted(folder.glob(f"{other_data.PREFIX}*"))
        if is_of_other_data(path)
    ]
    return [
        *(folder for folder in own if folder == run or (folder / EVALUATION).is_file()),
        *others,
    ]


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Every run folder below some folders, sorted, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"folder '{folder}' does not exist")
        if (around := run_folder(folder)) != folder:
            raise UserError(
                f"'{folder}' has results of weights or data that are not the run's own, which "
                "reports leave out; "
                f"see them with `{as_command('compare', around, folder)}`"
            )
        # A run has a recipe.yaml before its run.json, and a report mentions runs that have only
        # just begun.
        paths = {file.parent for file in files_below(folder, ["recipe.yaml", "run.json"])}
        for path in sorted(paths):
            # Hidden folders are unfinished work.
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                found.setdefault(path.resolve(), path)
    return list(found.values())


def _check_format(path: Path) -> None:
    """Refuse a run folder of another format, before reading anything that the format decides."""
    found = read_format(path)
    if found != FORMAT:
        written = (
            "by an early version of cudt, without a run format"
            if found is None
            else f"in run format {found}"
        )
        raise UserError(f"'{path}' was written {written}; this version reads format {FORMAT}")
