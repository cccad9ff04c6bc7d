"""Reading run folders for a report; what cannot be read is named and left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cudt import runs
from cudt.errors import UserError
from cudt.runs import Run


@dataclass(frozen=True)
class ReadRun:
    """A finished run with its tables in memory."""

    run: Run
    info: dict[str, Any]
    layers: pd.DataFrame
    ood: pd.DataFrame

    @property
    def recipe(self) -> str:
        return self.info["recipe"]

    @property
    def objective(self) -> str:
        return self.info["objective"]

    @property
    def metric(self) -> str:
        return self.info["metric"]["name"]

    @property
    def group(self) -> tuple[str, str, str]:
        """Runs that differ in their seed alone share it."""
        return (self.recipe, self.objective, self.info["variant"])


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
    found: list[ReadRun] = []
    warnings: list[str] = []
    for path in runs.find_runs(folders):
        try:
            run = runs.open_run(path)
            info = run.info()
            if info["status"] != "finished":
                warnings.append(f"{path}: {info['status']}" + (f" ({info['reason']})" if info.get("reason") else ""))
                continue
            found.append(ReadRun(run, info, run.read_table("layers"), run.read_table("ood")))
        except UserError as error:
            warnings.append(str(error))
        except (KeyError, ValueError, pd.errors.ParserError) as error:
            warnings.append(f"{path}: damaged ({type(error).__name__}: {error})")
            continue
        if found and found[-1].ood.empty and found[-1].run.path == path:
            warnings.append(f"{path}: not evaluated yet, so it has no curve; run `cudt eval-ood {path}`")
    return Collected(sorted(found, key=lambda run: (*run.group, run.info["seed"])), warnings)
