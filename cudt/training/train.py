"""Training as a user starts it, from a recipe to a run folder: a finished run is kept, an
interrupted one resumes, and however training ends, run.json says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import platform
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import LoggerType, set_seed
from safetensors import SafetensorError

from cudt import __version__
from cudt.config.recipe import NamedRecipe, shaping_values
from cudt.data.loader import batches
from cudt.method.constraints import is_feasible, is_monotone
from cudt.method.descent import descent_of
from cudt.method.objectives import Objective, make_objective
from cudt.models.base import build_model, check_model
from cudt.models.layer_losses import LayerwiseLosses, measure_sigma
from cudt.models.sharding import is_asked_for, is_sharded
from cudt.runs import info
from cudt.runs.info import RunInfo
from cudt.runs.run import OWN, Run, check_same, run_for, write_recipe
from cudt.tasks.base import SEEN, build_task
from cudt.training.checkpoint import discard, load_weights
from cudt.training.display import Display
from cudt.training.trainer import AfterEpoch, Trainer
from cudt.utils import errors, processes
from cudt.utils.device import DeviceName, accelerator_for, choose, name_of

_PACKAGES = ("torch", "accelerate", "cooper-optim", "transformers", "peft", "numpy")


def train(
    recipe: NamedRecipe,
    out: Path,
    device: DeviceName,
    data_root: Path | None,
    display: Display,
    *,
    track: Sequence[str] = (),
    after_epoch: AfterEpoch | None = None,
    wait: bool = False,
    keep_weights: bool = False,
) -> Run:
    """Train a recipe's run to its end; a finished run is returned, an interrupted one resumes.

    `track` names trackers of Accelerate to log to. `after_epoch` may end training early. `wait`
    waits for a process that uses the run. With `keep_weights` the caller calls `discard` itself.
    """
    run = run_for(recipe, out)
    if run.info().status != "finished":
        folder = out / "trackers" / run.path.name
        trackers = [one.value for one in LoggerType if one != LoggerType.ALL]
        if unknown := {*track} - {*trackers}:
            known = ", ".join(trackers)
            raise errors.UserError(f"--track {unknown.pop()}: unknown tracker; known: {known}")
        accelerator = accelerator_for(device, recipe.settings.training.precision, track, folder)
        if len(accelerator.log_with) < len(track):
            raise errors.UserError(f"--track {' '.join(track)}: not installed")
        # Everything that can be wrong with recipe or data fails here, before anything is written.
        trainer, started = _prepared(run, accelerator, display, data_root, after_epoch)
        with run.locked(wait=wait):
            accelerator.wait_for_everyone()
            # Another command may have finished it meanwhile.
            if run.info().status != "finished":
                if accelerator.is_main_process:
                    write_recipe(run)
                    run.update_info(started)
                with _recording(trainer), _trackers(trainer):
                    # run.json says that it is running before a process begins.
                    accelerator.wait_for_everyone()
                    trainer.fit()
                    _conclude(trainer)
            accelerator.wait_for_everyone()
    if processes.is_main_process():
        # Evaluation settings are not part of a run's identity, so the recipe may have changed.
        write_recipe(run)
        if not keep_weights:
            discard(run)
    return run


# ---------------------------------------------------------------- from a recipe to objects


def assemble(
    recipe: NamedRecipe,
    data_root: Path | None,
    device: torch.device,
) -> tuple[LayerwiseLosses, Objective]:
    """Build everything that training needs; new weights are drawn from the recipe's seed. A model
    that is to be sharded stays on the CPU.
    """
    settings = recipe.settings
    layerwise = assemble_model(recipe, data_root, torch.device("cpu") if is_asked_for() else device)
    task, f_0 = layerwise.task, settings.descent.reference
    f_0 = task.reference_loss() if f_0 == "auto" else f_0
    descent = descent_of(settings.descent, layerwise.model.n_layers, f_0)
    return layerwise, make_objective(settings.objective, descent)


def assemble_model(
    recipe: NamedRecipe, data_root: Path | None, device: torch.device
) -> LayerwiseLosses:
    """Build only the task and the model, with its layer losses."""
    settings = recipe.settings
    check_model(settings.model, data_root)
    task = build_task(settings.task, data_root, settings.model.tokenizer_source)
    set_seed(settings.seed)
    return LayerwiseLosses(build_model(settings.model, task, data_root), task).to(device)


def load(run: Run, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The trained model of a finished run, and its task."""
    layerwise = assemble_model(run.recipe, data_root, choose(device))
    _check_base(run, layerwise.frozen_digest())
    layerwise.load_learned_weights(load_weights(run))
    return layerwise.eval()


def sigma_of(run: Run, layerwise: LayerwiseLosses) -> float:
    """σ_x of the loaded weights; measured, if they are not the run's own."""
    if not (run.other_weights and layerwise.model.signal_is_learned):
        return run.finished_info().sigma_x.evaluation
    task, size = layerwise.task, run.recipe.settings.evaluation.batch_size
    device = next(layerwise.parameters()).device
    return measure_sigma(layerwise.model, batches(task, task.examples("train"), size, device))


def _check_base(run: Run, digest: str) -> None:
    check_same(run, "pretrained weights of the same name", run.info().frozen_weights, digest)


def _prepared(
    run: Run,
    accelerator: Accelerator,
    display: Display,
    data_root: Path | None,
    after_epoch: AfterEpoch | None,
) -> tuple[Trainer, RunInfo]:
    """The trainer, and what run.json says from the beginning; refuses other data and frozen weights
    than the run was started with.
    """
    if is_asked_for():
        # Shards of the run before are in a cycle of references, and would stay on the device.
        gc.collect()
    # The others find the files that the first process of a machine has put into the caches.
    with accelerator.local_main_process_first():
        layerwise, objective = assemble(run.recipe, data_root, accelerator.device)
        data, base = layerwise.task.fingerprint(SEEN), layerwise.frozen_digest()
        layerwise.task.examples("validation")
    check_same(run, "training data or tokenizer", run.info().training_data, data)
    _check_base(run, base)
    trainer = Trainer(run, layerwise, objective, accelerator, display, after_epoch)
    started = {
        "training_data": data,
        "frozen_weights": base,
        "command": _repeat_command(run, data_root),
    }
    return trainer, _started(trainer).model_copy(update=started)


def _started(trainer: Trainer) -> RunInfo:
    """What run.json says of a run that begins, and what follows from its objects."""
    run, settings, task = trainer.run, trainer.settings, trainer.task
    accelerator, descent = trainer.accelerator, trainer.descent
    return RunInfo(
        status="running",
        reason=None,
        recipe=run.recipe.name,
        objective=settings.objective,
        seed=settings.seed,
        variant=run.recipe.identity(without_seed=True),
        metric=info.MetricInfo(
            name=task.metric_name,
            higher_is_better=task.higher_is_better,
            of_mean=task.metric_of_mean,
        ),
        has_texts=task.has_texts,
        has_pictures=task.has_pictures,
        windows_of_clips=task.windows_of_clips,
        gamma_train=settings.noise.gamma_train,
        layers=descent.n_layers,
        reference=descent.reference,
        rates=descent.rates,
        form=descent.form,
        device=name_of(accelerator.device),
        processes=accelerator.num_processes,
        sharded=is_sharded(trainer.layerwise),
        versions={
            "cudt": __version__,
            "python": platform.python_version(),
            **{package: metadata.version(package) for package in _PACKAGES},
        },
        begun=_utc_now(),
    )


def _repeat_command(run: Run, data_root: Path | None) -> str:
    """The command that repeats a run from the recipe in its folder."""
    root = ["--data-root", str(data_root)] if data_root is not None else []
    recipe, out = str(run.path / "recipe.yaml"), str(run.path.parent.parent)
    return shlex.join(["cudt", "train", "--recipe", recipe, "--out", out, *root])


# ---------------------------------------------------------------- the end of a run


def _conclude(trainer: Trainer) -> None:
    """Measure the selected weights on validation data, write the verdict, and mark the run as
    finished.
    """
    run, settings, task = trainer.run, trainer.settings, trainer.task
    descent, now, select = trainer.descent, trainer.progress, trainer.settings.training.select
    trainer.checkpoints.save_weights("last")
    trainer.layerwise.load_learned_weights(load_weights(run))
    measured = trainer.measure_validation()
    losses = measured.layer_losses
    sigma_x = trainer.measure_sigma() if trainer.model.signal_is_learned else now.sigma_x
    slack, epoch, step = now.best_slack, now.best_epoch, now.best_step
    if select == "last":
        slack, epoch, step = descent.slack_in_loss_units(losses).tolist(), now.epoch, now.step
    verdicts = trainer.judge(measured, slack)
    feasible, monotone = is_feasible(verdicts), is_monotone(descent.reference, losses.tolist())
    verdict = {"feasible": float(feasible), "monotone": float(monotone)}
    trainer.accelerator.log(verdict, step=now.step)
    if not trainer.accelerator.is_main_process:
        return
    history = (run.path / "history.csv").read_bytes()
    with run.replacing("history.csv") as temporary:
        temporary.write_bytes(history)
    layers = {
        "split": "validation",
        "data": OWN,
        "weights": select,
        "noise": settings.noise.kind,
        "gamma": settings.noise.gamma_train,
        "seed": 0,
        "layer": range(1, len(verdicts) + 1),
        "loss": losses.tolist(),
        "metric": [task.metric(score) for score in measured.layer_scores.tolist()],
        "standard_error": [one.standard_error for one in verdicts],
    }
    run.write_table("layers", pd.DataFrame(layers))
    ended = RunInfo(
        status="finished",
        best=info.BestEpoch(epoch=epoch, validation_loss=losses[-1].item(), step=step),
        sigma_x=info.SigmaX(training=now.sigma_x, evaluation=sigma_x),
        judged_on=len(measured.ids),
        feasible=feasible,
        monotone=monotone,
        verdicts=[
            info.VerdictInfo(**dataclasses.asdict(one), verdict=one.verdict) for one in verdicts
        ],
        multipliers=info.MultiplierInfo(
            best=now.best_multipliers, last=descent.multiplier_values.tolist()
        ),
        stopped_early=now.step if now.stopped_early else None,
        seconds=now.seconds,
        ended=_utc_now(),
    )
    run.update_info(ended)


@contextlib.contextmanager
def _recording(trainer: Trainer) -> Iterator[None]:
    """Record in run.json why training ends, if it does not finish."""
    run = trainer.run

    def record(status: info.Status, reason: str | None = None) -> None:
        # A full disk has no room for it: run.json then stays as it was, and the run resumes.
        if trainer.accelerator.is_main_process:
            with contextlib.suppress(OSError):
                # 0 before a checkpoint is restored, which has the time until then.
                seconds = trainer.progress.seconds or run.info().seconds
                run.update_info(RunInfo(status=status, reason=reason, seconds=seconds))

    try:
        yield
    except KeyboardInterrupt as stop:
        record("interrupted")
        message = f"{run.path}: interrupted; run the same command again to resume"
        number = trainer.stop.signal_number or errors.signal_of(stop)
        raise errors.TrainingInterruptedError(message, number) from None
    except errors.TrainingPrunedError as error:
        record("interrupted", str(error))
        raise
    except (OSError, SafetensorError) as error:
        record("interrupted", str(error))
        raise errors.MachineFaultError(f"{run.path}: {error}") from error
    except Exception as error:
        record("failed", str(error))
        raise


@contextlib.contextmanager
def _trackers(trainer: Trainer) -> Iterator[None]:
    """Start the trackers that were asked for, with the recipe's settings, and close them."""
    recipe, accelerator, name = trainer.run.recipe, trainer.accelerator, trainer.run.path.name
    # As JSON, because not all trackers take lists and null.
    values = {
        key: value if isinstance(value, str | int | float) else json.dumps(value)
        for key, value in shaping_values(recipe.resolved(), "name").items()
    }
    options = {
        "wandb": {"name": name, "dir": accelerator.logging_dir},
        "mlflow": {"run_name": name},
    }
    accelerator.init_trackers(recipe.name, values, options)
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()


def _utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
