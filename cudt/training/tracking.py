"""Trackers (TensorBoard, Weights & Biases, MLflow …), which are Accelerate's: they get the rows of
history.csv as they are recorded, with updates as steps, and the verdict. A run that resumes sends
the rows since its last checkpoint again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import LoggerType

from cudt.config.differences import flat_settings
from cudt.config.recipe import NamedRecipe
from cudt.method.constraints import FAILING
from cudt.runs.info import FinishedInfo
from cudt.runs.run import Run
from cudt.training.history import Row
from cudt.utils.errors import UserError, did_you_mean
from cudt.utils.files import file_name

#: The folder of the trackers' files, next to the folders of the recipes.
FOLDER = "trackers"


@dataclass(frozen=True)
class TrackingRequest:
    """What is asked for: the names of the trackers, and the sweep that groups its runs."""

    names: tuple[str, ...] = ()
    group: str | None = None


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that Accelerate does not know, or that are not installed."""
    known, available = [*LOGGER_TYPE_TO_CLASS], [str(one) for one in get_available_trackers()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or ";"
            raise UserError(
                f"--track {name}: unknown tracker{hint} Accelerate has {', '.join(sorted(known))}"
            )
        # A class that was registered with Accelerate brings what it needs.
        if name in LoggerType.list() and name not in available:
            raise UserError(f"--track {name}: not installed; pip install {name}")


class Tracking:
    """The trackers of one run's Accelerator, if it has any."""

    def __init__(self, run: Run, accelerator: Accelerator, group: str | None = None) -> None:
        self._run, self._accelerator, self._group = run, accelerator, group
        self._width = 2

    def start(self) -> None:
        """Start the trackers, and send them the recipe."""
        if not self._accelerator.log_with:
            return
        self._width = max(2, len(str(self._run.info().layers or 0)))
        name, group = self._run.path.name, self._group
        # In each tracker's own words.
        options = {
            "wandb": {"name": name, "group": group, "dir": self._accelerator.logging_dir},
            "trackio": {"name": name, "group": group},
            "swanlab": {"experiment_name": name, "group": group},
            "mlflow": {"run_name": name, "tags": None if group is None else {"sweep": group}},
            "clearml": {"task_name": name},
        }
        self._accelerator.init_trackers(
            self._run.recipe.name, hyper_parameters(self._run.recipe), options
        )

    def log(self, rows: Sequence[Row]) -> None:
        """Send rows of the history, all of one update."""
        values = {self._name(split, layer, name): value for _, _, split, layer, name, value in rows}
        self._accelerator.log(values, step=rows[0][0])

    def conclude(self, info: FinishedInfo, step: int) -> None:
        """Send the verdict of a finished run."""
        holds = {
            self._name("train", one.layer, "constraint_holds"): one.verdict not in FAILING
            for one in info.verdicts
        }
        values = {"feasible": info.feasible, "monotone": info.monotone, **holds}
        self._accelerator.log({name: float(value) for name, value in values.items()}, step=step)

    def finish(self) -> None:
        """Let the trackers write what they hold, and close them."""
        for tracker in self._accelerator.trackers:
            tracker.finish()

    def _name(self, split: str, layer: int, name: str) -> str:
        """`loss/layer_03`, `loss_validation/layer_03`, `gradient_norm`: trackers group by what is
        before the slash.
        """
        group = file_name(name if split == "train" else f"{name}_{split}")
        return f"{group}/layer_{layer:0{self._width}}" if layer else group


def hyper_parameters(recipe: NamedRecipe) -> dict[str, bool | int | float | str]:
    """Every setting that shapes training, by dotted key; lists and null as JSON, which all trackers
    take.
    """
    values = {
        "objective": recipe.settings.objective,
        "seed": recipe.settings.seed,
        **flat_settings(recipe),
    }
    plain = bool | int | float | str
    return {
        key: value if isinstance(value, plain) else json.dumps(value)
        for key, value in values.items()
    }
