"""Search files for tests, on the embedded reviews, with a second of training per run."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import TrialState
from rich.console import Console

from cudt.config import yaml
from cudt.sweep import definition, run_sweep, stored
from cudt.sweep.definition import Sweep
from cudt.sweep.display import SweepDisplay
from cudt.sweep.queue import Trial, TrialQueue
from cudt.sweep.results import Results
from cudt.sweep.run_sweep import SweepOptions
from cudt.sweep.storage import open_storage
from cudt.sweep.study import ArmStudy
from tests.conftest import TINY

#: The `--set` options of TINY as a search file's `fixed`.
FIXED = {
    key: yaml.parse(text, key) for key, _, text in (setting.partition("=") for setting in TINY)
}
ALPHAS: dict[str, Any] = {"descent.alpha": [0.1, 0.2, 0.3]}
ALPHA: dict[str, Any] = {"descent.alpha": {"low": 0.0, "high": 0.5}}


def search(**changes: Any) -> dict[str, Any]:
    """The contents of a valid search file, with some top-level keys changed; None removes a key."""
    values = {
        "recipe": "reviews-ut",
        "score": {"measure": "metric", "direction": "maximize"},
        "fixed": FIXED,
        "arms": {"constrained": grid(ALPHAS)},
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def grid(searched: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"sampler": "grid", "search": searched, **more}


def drawn(
    sampler: str, budget: int, searched: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"sampler": sampler, "budget": budget, "search": searched or ALPHA, **more}


def seeds(budget: int, **more: Any) -> dict[str, Any]:
    return {"sampler": "seeds", "budget": budget, **more}


def write_search(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.dump(search(**changes)), encoding="utf-8")
    return path


def sweep_of(folder: Path, **changes: Any) -> Sweep:
    return definition.load(str(write_search(folder, **changes)))


def study_of(
    sweep: Sweep, storage: BaseStorage | None = None, *, retry_failed: bool = False
) -> ArmStudy:
    """The study of the only arm in the only setting, ready to run."""
    ((arm,), (setting,)) = (sweep.search.arms, sweep.settings)
    study = ArmStudy(sweep, setting, arm, storage or open_storage(None))
    stored.begin(sweep, [study], fail_fast=False, retry_failed=retry_failed)
    return study


def finish(study: TrialQueue, trial: Trial, score: float, facts: dict[str, Any]) -> None:
    """End a trial that this process has started, as a worker does."""
    study.remember(trial, facts)
    study.study.tell(trial.number, score)


def fail(study: TrialQueue, trial: Trial, reason: str, facts: dict[str, Any]) -> None:
    study.remember(trial, {**facts, "reason": reason})
    study.study.tell(trial.number, state=TrialState.FAIL)


def planted(function: str) -> str:
    """The import path of a planted cell function; a full path stays as it is."""
    return function if ":" in function else f"tests.sweep.planted:{function}"


def swept(
    sweep: Sweep, out: Path, function: str = "on_the_hill", **options: Any
) -> tuple[Results, str]:
    """Run a sweep whose cells call a planted function: its results, and what it printed."""
    console = Console(file=StringIO(), width=200, markup=False, emoji=False)
    asked = SweepOptions(out, "cpu", cell_function=planted(function), **options)
    found = run_sweep.run_sweep(sweep, asked, SweepDisplay(console))
    return found, console.file.getvalue()  # type: ignore[attr-defined]
