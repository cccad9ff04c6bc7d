"""Search files for tests, on the embedded reviews: shrunk to a second of training."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage
from rich.console import Console

from cudt.config import strict_yaml
from cudt.sweep import conduct, definition
from cudt.sweep.conduct import Options
from cudt.sweep.definition import Sweep
from cudt.sweep.display import SweepDisplay
from cudt.sweep.queue import Queue
from cudt.sweep.results import Results
from cudt.sweep.storage import open_storage
from cudt.sweep.study import ArmStudy
from tests.conftest import TINY

#: What `--set` says to TINY's recipe, as a search file says it.
FIXED = {key: strict_yaml.parse(text, key) for key, _, text in (setting.partition("=") for setting in TINY)}
ALPHAS: dict[str, Any] = {"descent.alpha": [0.1, 0.2, 0.3]}
ALPHA: dict[str, Any] = {"descent.alpha": {"low": 0.0, "high": 0.5}}


def search(**changes: Any) -> dict[str, Any]:
    """A sound search file's contents, with some top-level keys changed; None takes a key out."""
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


def drawn(sampler: str, budget: int, searched: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"sampler": sampler, "budget": budget, "search": searched or ALPHA, **more}


def seeds(budget: int, **more: Any) -> dict[str, Any]:
    return {"sampler": "seeds", "budget": budget, **more}


def write_search(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(strict_yaml.dump(search(**changes)), encoding="utf-8")
    return path


def sweep_of(folder: Path, **changes: Any) -> Sweep:
    return definition.load(str(write_search(folder, **changes)))


def study_of(sweep: Sweep, storage: BaseStorage | None = None, *, retry_failed: bool = False) -> ArmStudy:
    """The study of the only arm in the only setting, as a sweep that begins finds it."""
    ((arm,), (setting,)) = (sweep.search.arms, sweep.settings)
    study = ArmStudy(sweep, setting, arm, storage or open_storage(None))
    study.take_over(retry_failed=retry_failed)
    return study


def queue_of(studies: list[ArmStudy]) -> Queue:
    """A queue that nobody listens to."""
    return Queue(studies, refused=lambda name, reason: None)


def conducted(sweep: Sweep, out: Path, do: str = "on_the_hill", **options: Any) -> tuple[Results, str]:
    """A sweep with planted outcomes: what it found, and what it printed."""
    console = Console(file=StringIO(), width=200, markup=False, emoji=False)
    asked = Options(out, "cpu", do=do if ":" in do else f"tests.sweep.planted:{do}", **options)
    found = conduct.conduct(sweep, asked, SweepDisplay(console))
    return found, console.file.getvalue()  # type: ignore[attr-defined]
