"""Training as a user starts it: a finished run is kept, an interrupted one resumes, every end is
recorded.
"""

from __future__ import annotations

import contextlib
import gc
import shlex
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from accelerate import Accelerator

from cudt.config.models import PretrainedSection
from cudt.config.recipe import NamedRecipe
from cudt.data import hub
from cudt.models.assemble import TrainingProblem, assemble
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.sharding import is_sharded, sharding_for
from cudt.runs.info import RunInfo
from cudt.runs.run import Run, check_same_base, check_same_data, data_root_of, run_for, write_recipe
from cudt.tasks.base import SEEN
from cudt.training import expectations, trained
from cudt.training.checkpoint import discard
from cudt.training.display import Display
from cudt.training.started import started_info, utc_now
from cudt.training.tracking import FOLDER, Tracking, TrackingRequest, check_trackers
from cudt.training.trainer import AfterEpoch, Trainer
from cudt.utils import processes
from cudt.utils.device import DeviceName, accelerator_for, empty_cache
from cudt.utils.errors import (
    MACHINE_ERRORS,
    DataWarning,
    MachineFaultError,
    TrainingInterruptedError,
    TrainingPrunedError,
    TrainingStoppedError,
    signal_of,
)


def train(
    recipe: NamedRecipe,
    out: Path,
    device: DeviceName,
    data_root: Path | None,
    display: Display,
    *,
    command: str | None = None,
    keep_weights: bool = False,
    wait: bool = False,
    announce: Callable[[str], None] | None = None,
    after_epoch: AfterEpoch | None = None,
    track: TrackingRequest | None = None,
) -> Run:
    """Train a recipe's run to its end. A finished run is returned as it is, an interrupted one is
    resumed.

    `command` is recorded as what repeats the run; by default, training from its recipe.yaml.
    With `keep_weights` the caller calls
    `discard` itself. `wait` waits for a process that uses the run. With `announce`, constraints are
    printed and doubts are warnings. `after_epoch` may end it early.
    """
    run, track = run_for(recipe, out), track or TrackingRequest()
    check_trackers(track.names)
    if processes.from_main(run.info().status == "finished"):
        return _keep(run, device, data_root, keep_weights=keep_weights)
    # Everything that can be wrong with recipe or data fails here, before anything is written.
    files = out / FOLDER / (track.group or "") / run.path.name
    accelerator = accelerator_for(
        device, run.recipe.settings.training.precision, track.names, files
    )
    data_root = data_root_of(run, data_root)
    problem, data, base = _problem(run, data_root, accelerator)
    tracking = Tracking(run, accelerator, track.group)
    trainer = Trainer(run, problem, accelerator, display, after_epoch, tracking)
    with _held(run, wait=wait) as is_left:
        if is_left and accelerator.is_main_process:
            _announce(announce, trainer)
            started = started_info(recipe, problem, accelerator, data, base, command)
            _train_and_record(
                trainer, started, data_root, keep_weights=keep_weights
            )
        elif is_left:
            # The main process records how training ends.
            _fit(trainer, lambda changes: None)
    return run


@contextlib.contextmanager
def _held(run: Run, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a run; yields whether it is left to do: another command may have finished it
    meanwhile.
    """
    with run.locked(wait=wait):
        yield not processes.from_main(wait and run.info().status == "finished")


def _keep(
    run: Run, device: DeviceName, data_root: Path | None, *, keep_weights: bool
) -> Run:
    """A finished run as it is, except for what is left to do."""
    if processes.is_main_process():
        # It may have been killed when it was finished.
        # Evaluation settings are not part of a run's identity, so the recipe may have changed.
        write_recipe(run)
        load = partial(trained.load, run, device, data_root)
        _conclude(run, load, keep_weights=keep_weights)
    processes.wait()
    return run


def _conclude(
    run: Run, load: Callable[[], LayerwiseLosses], *, keep_weights: bool
) -> None:
    """Do what is left at the end of a run: record its history, delete the files
    it does not need.
    """
    run.seal("history.csv")
    if not keep_weights:
        discard(run)


def _announce(announce: Callable[[str], None] | None, trainer: Trainer) -> None:
    """Say what the constraints ask for, and warn if they have almost no weight."""
    if announce is None or not trainer.objective.is_constrained:
        return
    announce(expectations.asked(trainer.descent))
    if doubt := expectations.doubt(trainer.descent):
        warnings.warn(doubt, DataWarning, stacklevel=3)


def _problem(
    run: Run, data_root: Path | None, accelerator: Accelerator
) -> tuple[TrainingProblem, str, str]:
    """What to train, and the fingerprints of data and frozen weights; refuses others than the run
    was started with.
    """
    sharding = sharding_for(accelerator)
    if sharding is not None:
        # Shards of the run before are in a cycle of references, and would stay on the device.
        gc.collect()
        empty_cache()
    with processes.first_on_each_machine():
        problem = assemble(run.recipe, data_root, accelerator.device, sharding)
    data, base = problem.task.fingerprint(SEEN), problem.layerwise.frozen_digest()
    check_same_data(run, data)
    check_same_base(run, base)
    return problem, data, base


def _train_and_record(
    trainer: Trainer,
    started: RunInfo,
    data_root: Path | None,
    *,
    keep_weights: bool,
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
        trainer.tracking.conclude(run.finished_info(), trainer.state.step)
    finally:
        trainer.tracking.finish()
    run.update_info(RunInfo(ended=utc_now()))
    # No process has all weights of a sharded model.
    load = (
        partial(trained.load, run, "cpu", data_root)
        if is_sharded(trainer.layerwise)
        else lambda: trainer.layerwise
    )
    _conclude(run, load, keep_weights=keep_weights)


def _fit(trainer: Trainer, record: Callable[[RunInfo], None]) -> None:
    """Train, and record the status however training ends."""
    path = trainer.run.path
    try:
        # Run.json says that it is running before the first process resumes or begins.
        processes.wait()
        trainer.fit()
    except TrainingStoppedError as error:
        record(RunInfo(status="failed", reason=str(error)))
        raise TrainingStoppedError(f"{path}: {error}") from None
    except TrainingPrunedError as error:
        record(RunInfo(status="interrupted", reason=str(error)))
        raise
    except KeyboardInterrupt as error:
        record(RunInfo(status="interrupted"))
        number = trainer.stop.signal_number or signal_of(error)
        raise TrainingInterruptedError(
            f"{path}: interrupted; run the same command again to resume", number
        ) from None
    except MACHINE_ERRORS as error:
        raise _interrupted(str(error), path, record) from error
    except Exception as error:
        record(RunInfo(status="failed", reason=f"{type(error).__name__}: {error}"))
        raise


def _interrupted(fault: str, path: Path, record: Callable[[RunInfo], None]) -> MachineFaultError:
    """Record that a fault of the machine interrupted the run; the error that says so."""
    # A full disk has no room for it: run.json then stays as it was, and the run resumes all the
    # same.
    with contextlib.suppress(OSError):
        record(RunInfo(status="interrupted", reason=fault))
    return MachineFaultError(fault if str(path) in fault else f"{path}: {fault}")


def _repeat_command(run: Run, data_root: Path | None) -> str:
    """The command that repeats a run from the recipe in its folder."""
    out = run.path.parent.parent
    root = ["--data-root", str(data_root)] if data_root is not None else []
    return shlex.join(
        ["cudt", "train", "--recipe", str(run.path / "recipe.yaml"), "--out", str(out), *root]
    )


def _revisions(trainer: Trainer, data_root: Path | None) -> dict[str, dict[str, str]]:
    """The commits on the hub of model and data, as part of run.json; nothing if none is known."""
    model = trainer.settings.model
    source = model.source if isinstance(model, PretrainedSection) else None
    now = {"model": source and hub.commit_of(source, data_root), "task": trainer.task.commit}
    # A run that is resumed keeps the ones that it was started with.
    known = {key: commit for key, commit in now.items() if commit} | trainer.run.info().revisions
    return {"revisions": known} if known else {}
