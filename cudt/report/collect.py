"""Reading run folders for a report; what cannot be read is named and left out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.runs.find import find_runs, open_run
from cudt.runs.info import FinishedInfo
from cudt.runs.run import Run
from cudt.utils.errors import UserError

#: Runs that are named each by itself.
_MANY = 5


@dataclass(frozen=True)
class ReadRun:
    """A finished run with its tables in memory."""

    run: Run
    info: FinishedInfo
    layers: pd.DataFrame
    ood: pd.DataFrame
    ratio_bins: pd.DataFrame
    validation: pd.DataFrame
    """The metric on validation data at each level that a sweep judged by; empty where none did."""

    @property
    def recipe(self) -> str:
        return self.info.recipe

    @property
    def objective(self) -> str:
        return self.info.objective

    @property
    def seed(self) -> int:
        return self.info.seed

    @property
    def metric(self) -> str:
        return self.info.metric.name

    def setting(self, key: str) -> Any:
        """A setting of the recipe, by its dotted key."""
        value: Any = self.run.recipe.settings
        for part in key.split("."):
            value = getattr(value, part)
        return value

    @property
    def name(self) -> str:
        """As tables of sweeps call it."""
        return f"{self.run.path.parent.name}/{self.run.path.name}"

    @cached_property
    def curves(self) -> dict[str, dict[float, float]]:
        """The metric by kind and level of noise, noise seeds averaged; nan where one of them has no number."""
        rows = self.ood[self.ood["metric"] == self.metric]
        by_level: dict[tuple[str, float], list[float]] = {}
        for kind, gamma, value in zip(rows["perturbation"], rows["gamma"], rows["value"], strict=True):
            by_level.setdefault((str(kind), float(gamma)), []).append(float(value))
        found: dict[str, dict[float, float]] = {}
        for (kind, gamma), values in sorted(by_level.items()):
            found.setdefault(kind, {})[gamma] = sum(values) / len(values)
        return found

    @property
    def failing(self) -> dict[str, list[int]]:
        """The layers whose constraints are violated, or kept only as relaxed; only constrained runs have any."""
        is_infeasible = self.objective == "constrained" and not self.info.feasible
        verdicts = self.info.verdicts if is_infeasible else []
        return {
            name: [one.layer for one in verdicts if one.verdict == name]
            for name in ("violated", "relaxed")
            if any(one.verdict == name for one in verdicts)
        }

    @property
    def samples(self) -> list[Path]:
        """The strips of test examples that were saved, the moving pictures beside them."""
        return sorted((self.run.path / "samples").glob("*.png"))

    @property
    def group(self) -> tuple[str, str, str]:
        """Runs that differ in their seed alone share it."""
        return (self.recipe, self.objective, self.info.variant)


@dataclass(frozen=True)
class Collected:
    """The runs of a report, and a line for each folder that is not in it or not whole."""

    runs: list[ReadRun]
    warnings: list[str]

    @property
    def recipes(self) -> list[str]:
        return sorted({run.recipe for run in self.runs})


def collect(folders: Sequence[Path]) -> Collected:
    """Every finished run below some folders, in the order of recipe, objective, variant and seed."""
    found: dict[tuple[str, str, str, int], ReadRun] = {}
    paths = find_runs(folders)
    warnings = _about_folders(folders) if paths else []
    warnings += [line for folder in folders for line in _closed_below(folder)]
    for path in paths:
        try:
            run = _read(path)
        except UserError as error:
            warnings.append(str(error))
            continue
        key = (*run.group, run.seed)
        twin = found.setdefault(key, run)
        if twin is not run:
            used, other = (run, twin) if twin.ood.empty and not run.ood.empty else (twin, run)
            found[key] = used
            same = f"the same run (recipe, settings, seed) as {used.run.path}, which is used"
            warnings.append(f"{other.run.path}: {same}")
    warnings += _about_unevaluated([run.run.path for run in found.values() if run.ood.empty])
    return Collected([found[key] for key in sorted(found)], warnings)


def _about_folders(folders: Sequence[Path]) -> list[str]:
    """A line for each folder that has no run."""
    return [f"{folder}: no run below it" for folder in folders if not find_runs([folder])]


def _closed_below(folder: Path) -> list[str]:
    """A line for each folder that may not be read: a run there would be missed without a word."""
    closed: list[Path] = [] if _is_open(folder) else [folder]
    for path, names, _ in os.walk(folder):
        closed += [Path(path, name) for name in sorted(names) if not _is_open(Path(path, name))]
    return [f"{path}: cannot be read (permission denied)" for path in closed]


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _about_unevaluated(paths: Sequence[Path]) -> list[str]:
    """A line for each; of many, as a sweep leaves them, one for all."""
    if len(paths) > _MANY:
        return [
            f"{len(paths)} runs are not evaluated yet, so they have no curve; `cudt eval-ood` does it: {paths[0]} …"
        ]
    return [f"{path}: not evaluated yet, so it has no curve; run `cudt eval-ood {path}`" for path in paths]


def _read(path: Path) -> ReadRun:
    try:
        return _read_whole(path)
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be read ({error.strerror})") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise UserError(f"{path}: damaged ({error})") from None


def _read_whole(path: Path) -> ReadRun:
    if not (path / "run.json").is_file():
        raise UserError(f"{path}: begun, but nothing is trained yet (it has no run.json)")
    if not (path / "recipe.yaml").is_file():
        raise UserError(f"{path}: damaged (it has no recipe.yaml)")
    run = open_run(path)
    begun = run.info()
    if begun.status != "finished":
        status = begun.status or "damaged (run.json has no status)"
        raise UserError(f"{path}: {status}" + (f" ({begun.reason})" if begun.reason else ""))
    info = run.finished_info()
    names = ("layers", "ood", "ratio_bins", "validation")
    layers, ood, bins, validation = (_table(run, name) for name in names)
    return ReadRun(run, info, layers, ood, bins, validation[validation["metric"] == info.metric.name])


def _table(run: Run, name: str) -> pd.DataFrame:
    """A table of a run; refuses one that was cut off, whose last number may have lost digits."""
    table = run.read_table(name)
    path = run.path / f"{name}.csv"
    if path.is_file() and not path.read_bytes().endswith(b"\n"):
        raise ValueError(f"{name}.csv is cut off")
    return table
