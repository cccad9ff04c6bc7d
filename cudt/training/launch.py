"""Training as a user starts it: a finished run is kept, an interrupted one resumes, every end is recorded."""

from __future__ import annotations

import contextlib
import gc
import shlex
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from accelerate import Accelerator

from cudt.config.pretrained import PretrainedSection
from cudt.config.recipe import NamedRecipe
from cudt.data import hub
from cudt.data.splits import SEEN
from cudt.models.assemble import TrainingProblem, assemble
from cudt.models.headed import Config as HeadedConfig
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.sharding import is_sharded, sharding_for
from cudt.runs import checksums, export
from cudt.runs.data_root import data_root_of
from cudt.runs.find import run_for
from cudt.runs.info import RunInfo, TargetInfo
from cudt.runs.run import Run, check_same_base, check_same_data, write_recipe
from cudt.runs.tables import file_of
from cudt.training import expectations, trained
from cudt.training import target as targets
from cudt.training.checkpoint import discard
from cudt.training.display import Display
from cudt.training.history import History
from cudt.training.started import started_info, utc_now
from cudt.training.target import Announce
from cudt.training.tracker_kinds import check_trackers
from cudt.training.tracking import Tracking, TrackingRequest
from cudt.training.trainer import AfterEpoch, Trainer
from cudt.utils import processes
from cudt.utils.device import DeviceName, accelerator_for, empty_cache
from cudt.utils.errors import (
    MACHINE_ERRORS,
    AgreedFaultError,
    DataWarning,
    MachineFaultError,
    ProcessLostError,
    TrainingInterruptedError,
    TrainingPrunedError,
    TrainingStoppedError,
    UserError,
    signal_of,
)
from cudt.utils.interrupt import StopRequest


def train(
    recipe: NamedRecipe,
    out: Path,
    device: DeviceName,
    data_root: Path | None,
    display: Display,
    *,
    command: str | None = None,
    export_model: bool = True,
    keep_weights: bool = False,
    wait: bool = False,
    announce: Announce | None = None,
    after_epoch: AfterEpoch | None = None,
    track: TrackingRequest | None = None,
) -> Run:
    """Train a recipe's run to its end. A finished run is returned as it is, an interrupted one is resumed.

    `command` is recorded as what repeats the run; by default, training from its recipe.yaml. Without `export_model` a
    later call exports the model. With `keep_weights` the caller calls `discard` itself. `wait` waits for a process that
    uses the run. With `announce`, constraints are printed and doubts are warnings. `after_epoch` may end it early.
    """
    with processes.agreed():
        tracking = _tracking(run := run_for(recipe, out), out, track)
        is_finished = run.info().status == "finished"
    if processes.from_main(is_finished):
        return _keep(run, device, data_root, tracking, export_model=export_model, keep_weights=keep_weights)
    pilot = partial(train, device=device, data_root=data_root, display=display, export_model=False)
    # Everything that can be wrong with recipe or data fails here, before anything is written.
    target, accelerator = _target_and_accelerator(run, out, device, pilot, announce)
    with processes.agreed(), data_root_of(run, data_root) as data_root:
        problem, data, base = _problem(run, data_root, accelerator, target)
    with processes.agreed():
        trainer = Trainer(run, problem, accelerator, display, after_epoch, tracking)
    with _held(run, wait=wait) as is_left:
        if is_left and accelerator.is_main_process:
            _announce(announce, trainer, target, out)
            started = started_info(recipe, problem, accelerator, target, data, base, command)
            _train_and_record(trainer, started, data_root, export_model=export_model, keep_weights=keep_weights)
        elif is_left:
            _fit(trainer, partial(_record_for_main, run))
    return run


def _check_trainable(recipe: NamedRecipe) -> None:
    """Refuse the recipe of a run that another program trained: it says what was trained, not how to do it again."""
    model = recipe.settings.model
    if isinstance(model, HeadedConfig) and model.trained_by is not None:
        raise UserError(
            f"{recipe.name}: model.trained_by: this run was trained by {model.trained_by}, and cudt train would not "
            "repeat that; run the command in its run.json again"
        )


def _target_and_accelerator(
    run: Run, out: Path, device: DeviceName, pilot: targets.TrainPilot, announce: Announce | None
) -> tuple[TargetInfo | None, Accelerator]:
    precision = run.recipe.settings.training.precision
    target = targets.resolve(run, out, accelerator_for(device, precision), pilot, announce)
    # Another one: a pilot has its own, and Accelerate remembers the last.
    return target, accelerator_for(device, precision)


@contextlib.contextmanager
def _held(run: Run, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a run; yields whether it is left to do: another command may have finished it meanwhile."""
    with run.locked_by_main(wait=wait):
        yield not processes.from_main(wait and run.info().status == "finished")


def _record_for_main(run: Run, changes: RunInfo) -> bool:
    """Record an interruption in place of the main process, if that ended: nobody holds the lock then."""
    with contextlib.suppress(UserError), run.locked():
        if changes.status == "interrupted" and run.info().status == "running":
            run.update_info(changes)
            return True
    return False


def _tracking(run: Run, out: Path, asked: TrackingRequest | None) -> Tracking:
    """The trackers of a run, none of which is unknown or missing; the main process alone has any."""
    mine = asked if asked is not None and processes.is_main_process() else TrackingRequest()
    check_trackers(mine.names)
    return Tracking(run, out, mine)


def _keep(
    run: Run, device: DeviceName, data_root: Path | None, tracking: Tracking, *, export_model: bool, keep_weights: bool
) -> Run:
    """A finished run as it is, except for what is left to do."""
    with processes.agreed():
        _send_finished(run, tracking)
    if processes.is_main_process():
        # It may have been killed when it was finished.
        run.tidy()
        # Evaluation settings are not part of a run's identity, so the recipe may have changed.
        write_recipe(run)
        load = partial(trained.load, run, device, data_root)
        _conclude(run, load, export_model=export_model, keep_weights=keep_weights)
    processes.wait()
    return run


def _send_finished(run: Run, tracking: Tracking) -> None:
    """Send a run that is finished to trackers that lack a part of it."""
    file = run.path / file_of("history")
    if tracking.is_complete or not file.is_file():
        return
    try:
        tracking.start(History.resumed(run, file.stat().st_size))
        tracking.conclude(run.finished_info())
    finally:
        tracking.finish()


def _conclude(run: Run, load: Callable[[], LayerwiseLosses], *, export_model: bool, keep_weights: bool) -> None:
    """Do what is left at the end of a run: record its history, export its model, delete the files it does not need."""
    history = file_of("history")
    if (run.path / history).is_file() and history not in checksums.recorded(run.path):
        checksums.record_existing(run.path, history)
    # A run that keeps no weights exports none either.
    if export_model and run.recipe.settings.checkpoints.kept and not export.is_done(run):
        _export(run, load())
    if not keep_weights:
        discard(run)


def _announce(announce: Announce | None, trainer: Trainer, target: TargetInfo | None, out: Path) -> None:
    """Say what the constraints ask for, and warn of doubtful settings."""
    if announce is None or not trainer.objective.is_constrained:
        return
    for line in expectations.asked(trainer.descent, target):
        announce(line)
    for doubt in expectations.doubts(trainer.descent, trainer.run.recipe, out):
        warnings.warn(doubt, DataWarning, stacklevel=3)


def _problem(
    run: Run, data_root: Path | None, accelerator: Accelerator, target: TargetInfo | None
) -> tuple[TrainingProblem, str, str]:
    """What to train, and the fingerprints of data and frozen weights; refuses others than the run was started with."""
    _check_trainable(run.recipe)
    sharding, erm_loss = sharding_for(accelerator), None if target is None else target.loss
    if sharding is not None:
        # Shards of the run before are in a cycle of references, and would stay on the device.
        gc.collect()
        empty_cache()
    with processes.first_on_each_machine():
        problem = assemble(run.recipe, data_root, accelerator.device, erm_loss, sharding)
    data, base = problem.task.fingerprint(SEEN), problem.layerwise.frozen_digest()
    check_same_data(run, data)
    check_same_base(run, base)
    return problem, data, base


def _train_and_record(
    trainer: Trainer, started: RunInfo, data_root: Path | None, *, export_model: bool, keep_weights: bool
) -> None:
    """Train in the main process, which writes the run folder."""
    run = trainer.run
    write_recipe(run)
    root = None if data_root is None else str(data_root.absolute())
    # A run that was begun in shards may end without them.
    now = is_sharded(trainer.layerwise)
    sharded = {"sharded": now} if now or run.info().sharded else {}
    command = started.command or _repeat_command(run, data_root)
    changes = {"data_root": root, "command": command, **sharded, **_revisions(trainer, data_root)}
    run.update_info(started.model_copy(update=changes))
    try:
        _fit(trainer, run.update_info)
        trainer.tracking.conclude(run.finished_info())
    finally:
        trainer.tracking.finish()
    run.update_info(RunInfo(ended=utc_now()))
    # No process has all weights of a sharded model.
    load = partial(trained.load, run, "cpu", data_root) if is_sharded(trainer.layerwise) else lambda: trainer.layerwise
    _conclude(run, load, export_model=export_model, keep_weights=keep_weights)


def _fit(trainer: Trainer, record: Callable[[RunInfo], bool | None]) -> None:
    """Train, and record the status however training ends."""
    path = trainer.run.path
    try:
        # Run.json says that it is running before the first process resumes or begins.
        processes.wait()
        with processes.losses_noticed():
            trainer.fit()
    except ProcessLostError as error:
        # The launcher stops the processes that are left, and this one has something to write.
        with StopRequest():
            speaks = record(RunInfo(status="interrupted", reason=str(error)))
        raise ProcessLostError(f"{path}: {error}", speaks=bool(speaks)) from None
    except TrainingStoppedError as error:
        record(RunInfo(status="failed", reason=str(error)))
        raise TrainingStoppedError(f"{path}: {error}") from None
    except TrainingPrunedError as error:
        record(RunInfo(status="interrupted", reason=str(error)))
        raise
    except KeyboardInterrupt as error:
        record(RunInfo(status="interrupted"))
        number = trainer.stop.signal_number or signal_of(error)
        raise TrainingInterruptedError(f"{path}: interrupted; run the same command again to resume", number) from None
    except MACHINE_ERRORS as error:
        raise _interrupted(error, str(error), path, record) from error
    except Exception as error:
        record(RunInfo(status="failed", reason=f"{type(error).__name__}: {error}"))
        raise


def _interrupted(
    error: Exception, fault: str, path: Path, record: Callable[[RunInfo], bool | None]
) -> MachineFaultError:
    """Record that a fault of the machine interrupted the run; the error that says so."""
    # A full disk has no room for it: run.json then stays as it was, and the run resumes all the same.
    with contextlib.suppress(OSError):
        record(RunInfo(status="interrupted", reason=fault))
    kind = AgreedFaultError if isinstance(error, AgreedFaultError) else MachineFaultError
    return kind(fault if str(path) in fault else f"{path}: {fault}")


def _export(run: Run, layerwise: LayerwiseLosses) -> None:
    """Save the model for other libraries; if one of them fails, the run stays finished and a later call tries again."""
    try:
        run.update_info(RunInfo(saved_model=export.export(run, layerwise)))
    except MACHINE_ERRORS:
        raise
    except Exception as error:  # other libraries raise many kinds of exceptions for settings they do not support
        reason = str(error).strip().split("\n")[0]
        warnings.warn(f"{run.path}: finished, but model/ could not be saved: {reason}", DataWarning, stacklevel=2)


def _repeat_command(run: Run, data_root: Path | None) -> str:
    """The command that repeats a run from the recipe in its folder."""
    out = run.path.parent.parent
    root = ["--data-root", str(data_root)] if data_root is not None else []
    return shlex.join(["cudt", "train", "--recipe", str(run.path / "recipe.yaml"), "--out", str(out), *root])


def _revisions(trainer: Trainer, data_root: Path | None) -> dict[str, dict[str, str]]:
    """The commits on the hub of model and data, as part of run.json; nothing if none is known."""
    model = trainer.settings.model
    source = model.source if isinstance(model, PretrainedSection) else None
    now = {"model": source and hub.commit_of(source, data_root), "task": trainer.task.commit}
    # A run that is resumed keeps the ones that it was started with.
    known = {key: commit for key, commit in now.items() if commit} | trainer.run.info().revisions
    return {"revisions": known} if known else {}
