"""Read run folders for a report; a run that cannot be read is skipped with a warning."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.config.differences import flat_settings
from cudt.evaluation.curves import input_metric
from cudt.method.constraints import FAILING
from cudt.report.objectives import is_constrained
from cudt.runs.find import find_runs, open_run, run_folder
from cudt.runs.info import FinishedInfo
from cudt.runs.run import Run
from cudt.runs.tables import TABLES, file_of
from cudt.utils.errors import UserError
from cudt.utils.shown import as_command

#: More runs without an evaluation than these share one warning.
_MANY = 5

#: Recipe, objective and variant: the same for runs that differ in nothing but their seed.
GroupKey = tuple[str, str, str]
#: The editions of a recipe's runs that count as its own: the only one, or that of most runs.
MAIN_EDITIONS = ("", "1")


@dataclass(frozen=True)
class ReadRun:
    """A finished run with its tables in memory."""

    run: Run
    info: FinishedInfo
    layers: pd.DataFrame
    ood: pd.DataFrame
    ratio_bins: pd.DataFrame
    descent: pd.DataFrame
    """What is left of the constraints at each noise level; empty if the run was not evaluated."""
    exits: pd.DataFrame
    """Early exits; empty without `cudt eval-ood --exits`."""
    validation: pd.DataFrame
    """The metric on validation data at each level a sweep scored the run at; empty without a
    sweep."""
    edition: str = ""
    """Which test data and frozen weights it has, where those of its recipe differ (editions.py)."""
    measure: str = ""
    """What a sweep scored it by: loss, metric or grid; empty without a sweep."""
    is_repeated: bool = False
    """Whether a sweep repeats its settings on several seeds, and does not choose among settings."""

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
    def variant(self) -> str:
        """The hash of all settings but the seed.

        Runs of another edition are another variant.
        """
        edition = f"-{self.edition}" if self.edition not in MAIN_EDITIONS else ""
        return f"{self.info.variant}{edition}"

    @property
    def group(self) -> GroupKey:
        """Runs that differ in nothing but their seed share it."""
        return (self.recipe, self.objective, self.variant)

    @property
    def metric(self) -> str:
        return self.info.metric.name

    @property
    def higher_is_better(self) -> bool:
        return self.info.metric.higher_is_better

    @property
    def is_root(self) -> bool:
        """Whether the metric is the root of a mean score."""
        return self.info.metric.of_mean == "root"

    @property
    def n_layers(self) -> int:
        return self.info.layers

    @property
    def gamma_train(self) -> float:
        return self.info.gamma_train

    @property
    def reference(self) -> float:
        """f_0, which the first layer's constraint is relative to."""
        return self.info.reference

    @property
    def validation_loss(self) -> float:
        """The validation loss of the epoch whose weights are the run's own."""
        return self.info.best.validation_loss

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting that shapes training, by dotted key; without the seed."""
        found = flat_settings(self.run.recipe)
        edition = {"test data": self.edition} if self.edition else {}
        return {**found, **edition}

    @property
    def pretrained(self) -> str:
        """The pretrained model that it started from; empty without one."""
        return str(getattr(self.run.recipe.settings.model, "pretrained", None) or "")

    @property
    def is_cut(self) -> bool:
        """Whether it kept only some layers of its pretrained model (model.layers)."""
        model = self.run.recipe.settings.model
        return hasattr(model, "pretrained") and getattr(model, "layers", None) is not None

    @property
    def validation_metric(self) -> float:
        """The metric of the last layer on validation data, at γ_train; nan where it was not
        recorded.
        """
        rows = self.layers[self.layers["split"] == "validation"].sort_values("layer")
        return float(rows["metric"].iloc[-1]) if len(rows) else math.nan

    @property
    def name(self) -> str:
        """The name of the run in the tables of sweeps: `recipe/folder`."""
        return f"{self.run.path.parent.name}/{self.run.path.name}"

    @cached_property
    def curves(self) -> dict[str, dict[float, float]]:
        """The metric by kind and level of noise, averaged over noise seeds; nan if it is nan for
        one of them.
        """
        return self._curves_of(self.metric)

    @cached_property
    def input_curves(self) -> dict[str, dict[float, float]]:
        """The same of the noisy input itself; empty for tasks where it is no answer."""
        return self._curves_of(input_metric(self.metric))

    def _curves_of(self, metric: str) -> dict[str, dict[float, float]]:
        rows = self.ood[self.ood["metric"] == metric]
        by_level: dict[tuple[str, float], list[float]] = {}
        for kind, gamma, value in zip(
            rows["perturbation"], rows["gamma"], rows["value"], strict=True
        ):
            by_level.setdefault((str(kind), float(gamma)), []).append(float(value))
        found: dict[str, dict[float, float]] = {}
        for (kind, gamma), values in sorted(by_level.items()):
            found.setdefault(kind, {})[gamma] = sum(values) / len(values)
        return found

    @cached_property
    def descent_numbers(self) -> dict[tuple[str, str], dict[float, float]]:
        """The numbers of descent.csv about the whole model: by kind of noise and name, then by
        level.
        """
        found: dict[tuple[str, str], dict[float, float]] = {}
        # Without pandas, whose start-up at each of many runs takes longer than the work.
        for kind, gamma, layer, name, value in zip(
            *(self.descent[key].tolist() for key in self.descent), strict=True
        ):
            if layer == 0:
                found.setdefault((kind, name), {})[gamma] = value
        return {key: dict(sorted(values.items())) for key, values in found.items()}

    @property
    def failing(self) -> dict[str, list[int]]:
        """The layers whose constraints are violated, or kept only as relaxed; empty without
        constraints.
        """
        is_infeasible = is_constrained(self.objective) and not self.info.feasible
        verdicts = self.info.verdicts if is_infeasible else []
        return {
            name: [one.layer for one in verdicts if one.verdict == name]
            for name in FAILING
            if any(one.verdict == name for one in verdicts)
        }

    def has_table(self, name: str) -> bool:
        """Whether the run has a table; making an empty one takes as long as reading one."""
        return (self.run.results / f"{name}.csv").is_file()

    @property
    def samples(self) -> list[Path]:
        """The saved strips of test examples."""
        return sorted((self.run.results / "samples").glob("*.png"))


@dataclass(frozen=True)
class Collected:
    """The runs of a report, and a warning for each folder that was skipped or is incomplete."""

    runs: list[ReadRun]
    warnings: list[str]

    @property
    def recipes(self) -> list[str]:
        return sorted({run.recipe for run in self.runs})


def collect(folders: Sequence[Path]) -> Collected:
    """Read every finished run below some folders, in the order of recipe, objective, variant and
    seed.
    """
    found: dict[tuple[str, str, str, int], ReadRun] = {}
    paths = find_runs(folders)
    warnings = _about_folders(folders) if paths else []
    warnings += [line for folder in folders for line in _closed_below(folder)]
    for path in paths:
        try:
            run = read_run(path)
        except UserError as error:
            warnings.append(str(error))
            continue
        key = (*run.group, run.seed)
        twin = found.setdefault(key, run)
        if twin is not run:
            used, other = (run, twin) if twin.ood.empty and not run.ood.empty else (twin, run)
            found[key] = used
            reason = f"skipped: the same run (recipe, settings, seed) as {used.run.path}"
            warnings.append(f"{other.run.path}: {reason}")
    # A search that keeps no weights is scored on validation data alone; nobody expects curves of
    # its runs.
    can_be_evaluated = [run for run in found.values() if run.run.recipe.settings.checkpoints.kept]
    warnings += _about_unevaluated([run.run.path for run in can_be_evaluated if run.ood.empty])
    return Collected([found[key] for key in sorted(found)], warnings)


def _about_folders(folders: Sequence[Path]) -> list[str]:
    """A warning for each folder without a run."""
    return [f"{folder}: no runs found" for folder in folders if not find_runs([folder])]


def _closed_below(folder: Path) -> list[str]:
    """A warning for each folder that may not be read: runs in it would be missing silently."""
    closed: list[Path] = [] if _is_open(folder) else [folder]
    for path, names, _ in os.walk(folder):
        closed += [Path(path, name) for name in sorted(names) if not _is_open(Path(path, name))]
    return [f"{path}: cannot be read (permission denied)" for path in closed]


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _about_unevaluated(paths: Sequence[Path]) -> list[str]:
    """A warning for each run without an evaluation; one for all of many, as a sweep leaves them."""
    if len(paths) > _MANY:
        return [
            f"{len(paths)} runs are not evaluated yet and have no curve: {paths[0]} and others; "
            "run `cudt eval-ood` on the ones you need"
        ]
    return [
        f"{path}: not evaluated yet and has no curve; run `{as_command('eval-ood', path)}`"
        for path in paths
    ]


def read_run(path: Path) -> ReadRun:
    """The finished run in a folder; in the subfolder `last` or `best` of a run, the run with these
    weights.
    """
    try:
        return _read_whole(path)
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be read ({error.strerror})") from None


def _read_whole(path: Path) -> ReadRun:
    folder = run_folder(path)
    if not (folder / "run.json").is_file():
        raise UserError(f"{path}: skipped: training has not finished an epoch yet (no run.json)")
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{path}: damaged (no recipe.yaml)")
    run = open_run(path)
    info = run.info()
    if info.status != "finished":
        status = info.status or "damaged (run.json has no status)"
        raise UserError(f"{path}: {status}" + (f" ({info.reason})" if info.reason else ""))
    finished = run.finished_info()
    names = ("layers", "ood", "ratio_bins", "descent", "exits", "validation")
    layers, ood, bins, descent, exits, validation = (run.read_table(name) for name in names)
    for name in TABLES:
        if name not in names:
            # Figures and sections read it later, when the run can no longer be left out.
            run.check_file(file_of(name))
    own = validation[validation["metric"] == finished.metric.name]
    return ReadRun(run, finished, layers, ood, bins, descent, exits, own)
