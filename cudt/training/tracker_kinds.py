"""The trackers that Accelerate knows, and how each gets the run, its group and its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
from accelerate.utils import LoggerType

from cudt.utils.errors import UserError, did_you_mean

#: Trackers of Accelerate that take no text as a value.
_NUMBERS_ONLY = ("aim", "clearml", "dvclive", "mlflow", "swanlab", "trackio")


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows about a run."""

    project: str
    """The recipe's name."""
    name: str
    group: str | None
    """The sweep that it belongs to."""
    attempt: str
    """32 hexadecimal digits that stay the same when the run resumes, and change when it begins anew."""
    known_as: str | None
    """How the tracker called the run when it began, if it is the tracker that chooses."""
    root: Path
    """The folder of all runs' trackers."""
    folder: Path
    """The folder of this run's, below it."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that Accelerate does not know, or that are not installed."""
    known = [*LOGGER_TYPE_TO_CLASS]
    available = [str(one) for one in get_available_trackers()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or ";"
            raise UserError(f"--track {name}: unknown tracker{hint} Accelerate has {', '.join(sorted(known))}")
        # A class that was registered with Accelerate brings what it needs.
        if name in LoggerType.list() and name not in available:
            raise UserError(f"--track {name}: not installed; pip install {name}")


def build(name: str, run: TrackedRun) -> GeneralTracker:
    """A tracker that is not started yet."""
    kind = LOGGER_TYPE_TO_CLASS[name]
    if name == "tensorboard":
        # Its runs are the folders below the one that TensorBoard is shown.
        return kind(str(run.folder.relative_to(run.root)), str(run.root))
    if name == "aim":
        return kind(run.name, str(run.root), experiment=run.project)
    options = _options(name, run)
    return kind(run.project, *([str(run.folder)] if kind.requires_logging_directory else []), **options)


def _options(name: str, run: TrackedRun) -> dict[str, Any]:
    """The name of the run, its group, how it resumes and where it writes, in a tracker's own words."""
    match name:
        case "wandb":
            resumed = {"id": run.attempt, "resume": "allow"}
            return {"name": run.name, "group": run.group, "dir": str(run.root), **resumed}
        case "mlflow":
            tags = None if run.group is None else {"sweep": run.group}
            return {"run_name": run.name, "tags": tags, "run_id": run.known_as}
        case "trackio":
            return {"name": run.name, "group": run.group, "resume": "allow"}
        case "swanlab":
            # It wants 21 characters.
            resumed = {"id": run.attempt[:21], "resume": "allow"}
            return {"experiment_name": run.name, "group": run.group, "logdir": str(run.root), **resumed}
        case "comet_ml":
            return {"experiment_key": run.attempt}
        case "clearml":
            return {"task_name": run.name}
        case "dvclive":
            return {"dir": str(run.folder / "dvclive"), "resume": True}
    return {}


def chosen_name(name: str, tracker: GeneralTracker) -> str | None:
    """How a started tracker calls the run, if it is the tracker that chooses."""
    return str(tracker.tracker.info.run_id) if name == "mlflow" else None


def takes_text(name: str) -> bool:
    return name not in _NUMBERS_ONLY
