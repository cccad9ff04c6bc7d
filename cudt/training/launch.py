"""A training as a user asks for it: found again if it was done, continued if it was begun, closed with a status."""

from __future__ import annotations

import platform
import shlex
import sys
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from cudt import __version__
from cudt.config.recipe import NamedRecipe
from cudt.data.splits import SEEN
from cudt.models.assemble import TrainingProblem, assemble
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs import export, trained
from cudt.runs.info import MetricInfo, RunInfo
from cudt.runs.run import Run, check_same_base, check_same_data, run_for, write_recipe
from cudt.training.display import Display
from cudt.training.trainer import Trainer
from cudt.utils.device import DeviceName, accelerator_for, choose
from cudt.utils.errors import DataWarning, TrainingInterruptedError, TrainingStoppedError, UserError

_RECORDED = ("torch", "accelerate", "cooper-optim", "transformers", "peft", "numpy")


def check_data_root(data_root: Path | None) -> Path | None:
    if data_root is not None and not data_root.is_dir():
        raise UserError(f"data root '{data_root}' does not exist; give the folder that holds the data sets")
    return data_root


def train(
    recipe: NamedRecipe,
    out: Path,
    device: DeviceName,
    data_root: Path | None,
    display: Display,
    *,
    export_model: bool = True,
    wait: bool = False,
    command: str | None = None,
) -> Run:
    """Train a recipe's run to its end. A finished run is returned as it is; an interrupted one goes on.

    Without `export_model`, what other libraries load is not saved; the next call with it does that. With `wait`,
    another process that uses the run is waited for. run.json records `command`, by default that of this process.
    """
    check_data_root(data_root)
    run = run_for(recipe, out)
    if run.info().status == "finished":
        _refresh(run, device, data_root, export_model)
        return run
    # Whatever the recipe asks for that cannot be had fails here, before anything is written.
    accelerator = accelerator_for(device, recipe.settings.training.precision)
    experiment = assemble(recipe, data_root, accelerator.device)
    check_same_data(run, experiment.task.fingerprint(SEEN))
    check_same_base(run, experiment.layerwise.frozen_digest())
    trainer = Trainer(run, experiment, accelerator, display)
    if accelerator.is_main_process:
        with run.locked(wait=wait):
            if wait and run.info().status == "finished":
                return run
            write_recipe(run)
            run.update_info(_facts(recipe, experiment, accelerator, command))
            _fit(trainer, run.update_info)
            run.update_info(RunInfo(ended=_now()))
            if export_model:
                _export(run, experiment.layerwise)
    else:
        _fit(trainer, lambda changes: None)
    accelerator.wait_for_everyone()
    return run


def _refresh(run: Run, device: DeviceName, data_root: Path | None, export_model: bool) -> None:
    """Bring the files of a finished run up to date."""
    # What a recipe says about evaluation is not part of a run's identity, and may have changed since.
    write_recipe(run)
    if export_model and not export.is_done(run):
        _export(run, trained.load(run, data_root, choose(device)))


def _fit(trainer: Trainer, record: Callable[[RunInfo], None]) -> None:
    """Train; however it ends, the run's status says so."""
    path = trainer.run.path
    trainer.accelerator.wait_for_everyone()
    try:
        trainer.fit()
    except TrainingStoppedError as error:
        record(RunInfo(status="failed", reason=str(error)))
        raise TrainingStoppedError(f"{path}: {error}") from None
    except KeyboardInterrupt:
        record(RunInfo(status="interrupted"))
        raise TrainingInterruptedError(f"{path}: interrupted; the same command goes on from here") from None
    except Exception as error:
        record(RunInfo(status="failed", reason=f"{type(error).__name__}: {error}"))
        raise


def _export(run: Run, layerwise: LayerwiseLosses) -> None:
    """Save the model for other libraries; a run is not lost over what they refuse, and the same command tries again."""
    try:
        run.update_info(RunInfo(saved_model=export.export(run, layerwise)))
    except Exception as error:  # libraries raise many kinds over settings that they find odd
        reason = str(error).strip().split("\n")[0]
        warnings.warn(f"{run.path}: finished, but model/ could not be saved: {reason}", DataWarning, stacklevel=2)


def _facts(recipe: NamedRecipe, experiment: TrainingProblem, accelerator: Any, command: str | None) -> RunInfo:
    """What is known before the first update."""
    settings, task, descent = recipe.settings, experiment.task, experiment.descent
    return RunInfo(
        status="running",
        reason=None,
        recipe=recipe.name,
        objective=settings.objective,
        seed=settings.seed,
        variant=recipe.identity(without_seed=True),
        task_version=task.version,
        training_data=task.fingerprint(SEEN),
        data_notes=task.notes(),
        frozen_weights=experiment.layerwise.frozen_digest(),
        metric=MetricInfo(name=task.metric_name, higher_is_better=task.higher_is_better, of_mean=task.metric_of_mean),
        has_texts=task.has_texts,
        has_pictures=task.has_pictures,
        gamma_train=settings.noise.gamma_train,
        layers=experiment.layerwise.model.n_layers,
        parameters=sum(weight.numel() for weight in experiment.layerwise.parameters()),
        reference=descent.reference,
        rates=descent.rates,
        device=_device_name(accelerator.device),
        processes=accelerator.num_processes,
        autocast=accelerator.mixed_precision,
        versions={
            "cudt": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in _RECORDED},
        },
        command=command or shlex.join(["cudt", *sys.argv[1:]]),
        begun=_now(),
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
