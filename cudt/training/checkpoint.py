"""Checkpoints, from which training resumes, and the weights of the best and of the last epoch."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cudt.config.schema import Weights
from cudt.method.descent import LayerwiseDescent
from cudt.models.layer_losses import LayerwiseLosses, weights_digest
from cudt.models.sharding import is_sharded
from cudt.runs.checksums import check_file, forget, replacing_checked
from cudt.runs.run import Run
from cudt.training import best_weights, checkpoint_file, earlier_checkpoint
from cudt.training.checkpoint_file import CheckpointFile, FileRecord, damage_of, damaged, unreadable, write_tensors
from cudt.training.history import History
from cudt.training.shards import gathered_weights, load_shards, save_shards, sharded_moments
from cudt.training.state import TrainingState
from cudt.training.state_tree import put_together, taken_apart
from cudt.utils import processes
from cudt.utils.device import RandomState, random_state, seed_process, set_random_state
from cudt.utils.errors import DamagedFileError, DataWarning, UserError
from cudt.utils.files import delete, link_or_copy
from cudt.utils.shown import as_command

#: Files of checkpoints, and temporary files of a process that was killed.
_OURS = re.compile(r"(checkpoint-|step-|last\.pt$)|\.+(checkpoint-|step-|best\.|last\.)")

Damage = tuple[Path, str]


@dataclass
class Checkpoints:
    """Saves and restores everything that training changes.

    A checkpoint is checkpoint-<number>.json and the files that it names (checkpoint_file.py). None of them is ever
    changed, the JSON is written last, and older checkpoints are deleted after that: there is a complete one at any
    time. Two are kept, of two numbers of updates, so that the older one is used if a file of the newer is damaged.
    best.safetensors and last.safetensors are further names of files of weights.

    If the processes share the weights, their shards and those of the optimiser are in a folder instead (shards.py). All
    processes call these methods together; only the main one writes anything but shards. The others wait for it in
    `agreed`, which takes as long as it takes; in the next update they would take it for lost.
    """

    run: Run
    layerwise: LayerwiseLosses
    optimizer: torch.optim.Optimizer
    descent: LayerwiseDescent
    _kept: list[tuple[int, CheckpointFile]] = field(default_factory=list, init=False)
    """The checkpoints on disk that a resume may use, with their numbers, the newest first."""
    _written: dict[str, FileRecord] = field(default_factory=dict, init=False)
    """The file of the weights as they are now, if they are on disk."""
    _written_shards: dict[str, FileRecord] = field(default_factory=dict, init=False)
    """The same as shards."""
    _best: str | None = field(default=None, init=False)
    """The SHA-256 of best.safetensors, if there is a best epoch and the run needs its weights."""
    _history: History = field(default_factory=History, init=False)
    """What the main process read of history.csv to check it."""

    @property
    def folder(self) -> Path:
        return self.run.checkpoints

    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return bool(checkpoint_file.numbers_in(self.folder)) or (self.folder / earlier_checkpoint.NAME).is_file()

    # ---------------------------------------------------------------- saving

    def save(self, state: TrainingState, history: History, *, lost: bool = False) -> None:
        """Append to history.csv, write a checkpoint, and delete all but two.

        `lost` says that another process ended, so that the main one saves what it has.
        """
        generators = [random_state()] if lost else processes.gathered(random_state())
        with contextlib.nullcontext() if lost else processes.agreed():
            shards = self._write_shards(state.step) if is_sharded(self.layerwise) else None
            if processes.is_main_process():
                history.append(self.run)
                self._write(state, history, generators, shards)

    def _write(
        self,
        state: TrainingState,
        history: History,
        generators: list[RandomState],
        shards: dict[str, FileRecord] | None,
    ) -> None:
        """Write a checkpoint of which the shards, if any, are on disk."""
        weights = shards or self._write_weights(state.step)
        number = max(checkpoint_file.numbers_in(self.folder), default=0) + 1
        optimizer = self.optimizer.state_dict()
        if shards is not None:
            # The rest is in the shards.
            optimizer = {"param_groups": optimizer["param_groups"]}
        tree = {"optimizer": optimizer, "descent": self.descent.state_dict(), "generators": generators}
        plain, tensors = taken_apart(tree)
        file = checkpoint_file.file_of(self.folder, number)
        tensor_file = file.with_suffix(".safetensors")
        content = CheckpointFile(
            format=1,
            progress=replace(state),
            weights=f"step-{state.step}" if shards else next(iter(weights)),
            state=plain,
            state_file=tensor_file.name,
            best=self._best,
            history=history.saved(),
            files={**weights, tensor_file.name: write_tensors(tensor_file, tensors)},
        )
        checkpoint_file.write(file, content)
        self._keep(number, content)

    def _keep(self, number: int, content: CheckpointFile) -> None:
        """Delete all checkpoints but this one and the one before, and what killed processes left."""
        # The same weights in both would be damaged together.
        others = [one for one in self._kept if one[1].progress.step != content.progress.step]
        self._kept = [(number, content), *(others or self._kept)[:1]]
        kept = {checkpoint_file.file_of(self.folder, one).name for one, _ in self._kept}
        kept |= {name.split("/")[0] for _, one in self._kept for name in one.files}
        for path in _files(self.run):
            if path.name not in kept | self._written.keys():
                delete(path)

    def save_weights(self, which: Weights, step: int) -> None:
        """Name the weights after `step` updates best.safetensors or last.safetensors, if the recipe needs them."""
        settings = self.run.recipe.settings
        if which in settings.checkpoints.needed(settings.training.select):
            with processes.agreed():
                ((name, record),) = self._write_weights(step).items()
                if processes.is_main_process():
                    with replacing_checked(self.run.path, _name(self.run, which)) as temporary:
                        link_or_copy(self.folder / name, temporary)
            if which == "best":
                self._best = record.sha256

    def _write_shards(self, step: int) -> dict[str, FileRecord]:
        """The shards of weights and optimiser after `step` updates, by name; they are written once."""
        path = self.folder / f"step-{step}"
        if not any(name.startswith(f"{path.name}/") for name in self._written_shards):
            self._written_shards = save_shards(path, self.layerwise, self.optimizer)
        return self._written_shards

    def _write_weights(self, step: int) -> dict[str, FileRecord]:
        """The file of the weights after `step` updates, by name; it is written once."""
        name = f"step-{step}.safetensors"
        if name not in self._written:
            is_main = processes.is_main_process()
            weights = gathered_weights(self.layerwise, keep=is_main)
            # The main process alone has a use for the record.
            none = FileRecord(bytes=0, sha256="")
            self._written = {name: write_tensors(self.folder / name, weights) if is_main else none}
        return self._written

    # ---------------------------------------------------------------- restoring

    def restore(self) -> tuple[TrainingState, History]:
        """Load the newest checkpoint that is intact into model, optimisers and random generators.

        The checkpoint may be of another number of processes; one that it does not know seeds its generators.
        """
        self._kept = self._newest_intact()
        if not self._kept:
            return self._restore_earlier()
        number, content = self._kept[0]
        with _fitting(checkpoint_file.file_of(self.folder, number)):
            # Copied, because they are parts of the file otherwise, which the next checkpoints delete.
            tensors = {name: tensor.clone() for name, tensor in load_file(self.folder / content.state_file).items()}
            tree = put_together(content.state, tensors)
            self._load(tree, content)
            self._restore_rest(tree, content.progress)
        # The main process writes it.
        history = self._history if processes.is_main_process() else History(size=content.history.bytes)
        return self._with_best(content), history

    def _newest_intact(self) -> list[tuple[int, CheckpointFile]]:
        """The newest intact checkpoint and those before it, the same in all processes; none if there is only last.pt.

        Warns of damaged ones that are newer; a DamagedFileError if there is no other.
        """
        with processes.agreed():
            read = [*self._read_all()] if processes.is_main_process() else []
        damages: list[Damage] = []
        read = processes.from_main(read)
        for index, (number, content, reason) in enumerate(read):
            path = checkpoint_file.file_of(self.folder, number)
            with processes.agreed():
                mine = (path, reason) if content is None else self._damage(content)
            found = [one for one in processes.gathered(mine) if one is not None]
            if not found and content is not None:
                _warn(damages, f"resuming from update {content.progress.step} instead")
                return [(other, its) for other, its, _ in read[index:] if its is not None]
            damages.append(found[0])
        if not processes.from_main((self.folder / earlier_checkpoint.NAME).is_file()):
            for path, reason in damages:
                # The disk may be lost for a moment only, as a network's can be.
                if reason == checkpoint_file.UNREADABLE:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            path, reason = damages[0]
            raise DamagedFileError(
                path, reason, f"no checkpoint is left to resume from; delete {self.folder} to train from the beginning"
            )
        _warn(damages, f"resuming from {earlier_checkpoint.NAME} instead")
        return []

    def _read_all(self) -> Iterator[tuple[int, CheckpointFile | None, str]]:
        """The checkpoints' numbers and files of JSON, the newest first; for one that is damaged, what is wrong."""
        for number in checkpoint_file.numbers_in(self.folder):
            try:
                yield number, checkpoint_file.read(checkpoint_file.file_of(self.folder, number)), ""
            except DamagedFileError as error:
                yield number, None, error.reason

    def _damage(self, content: CheckpointFile) -> Damage | None:
        """What is wrong with the files of a checkpoint that this process reads, or has a share in checking."""
        files = sorted(content.files)
        if content.weights not in content.files:
            # Shards: each process checks some of them, and all check the rest.
            shards = [name for name in files if name.startswith(f"{content.weights}/")]
            others = [name for name in files if name not in shards]
            files = [*others, *shards[processes.index() :: processes.count()]]
        for name in files:
            if (reason := damage_of(self.folder / name, content.files[name])) is not None:
                return self.folder / name, reason
        return self._damage_of_history(content) if processes.is_main_process() else None

    def _damage_of_history(self, content: CheckpointFile) -> Damage | None:
        try:
            self._history = History.resumed(self.run, content.history.bytes, content.history.sha256)
        except DamagedFileError as error:
            return error.path, error.reason
        except OSError as error:
            return self.run.path / "history.csv", unreadable(error)
        return None

    def _with_best(self, content: CheckpointFile) -> TrainingState:
        """The progress of a checkpoint; without its best epoch, if the weights of that are lost."""
        # A copy, because training changes it, and the checkpoint on disk stays as it is.
        progress, self._best = replace(content.progress), content.best
        if content.best is None:
            return progress
        with processes.agreed():
            is_main = processes.is_main_process()
            found = best_weights.settled(self.run, content.best, progress.step) if is_main else None
        found = processes.from_main(found)
        if found == "kept":
            return progress
        self._best = None
        follows = progress.epoch < self.run.recipe.settings.training.epochs and not progress.stopped_early
        if found == "lost":
            lost = f"the weights of epoch {progress.best_epoch}, the best one so far, are lost"
            instead = (
                "the best epoch is chosen among those that follow" if follows else "the last epoch is used instead"
            )
            _warn([(self.run.weights_file("best"), lost)], instead)
        if follows:
            nothing = replace(progress, best=None, best_epoch=0, best_step=None, best_slack=[], best_multipliers=None)
            return replace(nothing, since_best=0)
        self.save_weights("best", progress.step)
        multipliers = self.descent.multiplier_values.tolist()
        last = replace(progress, best_epoch=progress.epoch, best_step=progress.step, best_multipliers=multipliers)
        return replace(last, best_slack=progress.last_slack)

    def _load(self, tree: dict[str, Any], content: CheckpointFile) -> None:
        """Load weights and optimiser."""
        optimizer = tree["optimizer"]
        if content.weights in content.files:
            self.layerwise.load_learned_weights(load_file(self.folder / content.weights))
            self.optimizer.load_state_dict(sharded_moments(optimizer, self.optimizer))
            self._written = {content.weights: content.files[content.weights]}
        else:
            own = {name: one for name, one in content.files.items() if name.startswith(f"{content.weights}/")}
            files = sorted((self.folder / name for name in own), key=lambda path: int(path.name.split("-")[0]))
            load_shards(files, self.layerwise, self.optimizer, optimizer["param_groups"])
            self._written_shards = own

    def _restore_rest(self, tree: dict[str, Any], progress: TrainingState) -> None:
        """Load multipliers, slacks and random generators."""
        self.descent.load_state_dict(tree["descent"])
        known, process = tree["generators"], processes.index()
        if process < len(known):
            set_random_state(known[process])
        else:
            seed_process(self.run.recipe.settings.seed, progress.step, process)

    def _restore_earlier(self) -> tuple[TrainingState, History]:
        """The same from a checkpoint of an earlier version."""
        found = earlier_checkpoint.read(self.run)
        optimizer = found.tree["optimizer"]
        with _fitting(self.folder / earlier_checkpoint.NAME):
            if isinstance(found.weights, Path):
                groups = optimizer["param_groups"]
                earlier_checkpoint.load_distributed(found.weights, self.layerwise, self.optimizer, groups)
            else:
                self.layerwise.load_learned_weights(found.weights)
                self.optimizer.load_state_dict(sharded_moments(optimizer, self.optimizer))
            self._restore_rest(found.tree, found.progress)
        if found.progress.best_epoch:
            self._best = best_weights.digest_now(self.run.weights_file("best"))
        return found.progress, found.history


@contextlib.contextmanager
def _fitting(file: Path) -> Iterator[None]:
    """Raise a DamagedFileError if an intact checkpoint does not have what this model needs."""
    try:
        with processes.losses_noticed():
            yield
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError, IndexError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise damaged(file, f"does not fit this model: {type(error).__name__}: {reason}") from None


def _warn(damages: list[Damage], instead: str) -> None:
    """Warn of each damaged checkpoint, once for all processes."""
    if processes.is_main_process():
        for path, reason in damages:
            warnings.warn(f"{path}: damaged ({reason}); {instead}", DataWarning, stacklevel=2)


def _name(run: Run, which: Weights) -> str:
    """The file of some weights, as checksums.json names it."""
    return str(run.weights_file(which).relative_to(run.path))


def _files(run: Run) -> list[Path]:
    """Everything that belongs to checkpoints, without the weights of the best and of the last epoch."""
    folder = run.checkpoints
    return [path for path in folder.iterdir() if _OURS.match(path.name)] if folder.is_dir() else []


def discard(run: Run) -> None:
    """Delete what a finished run no longer needs: its checkpoint, and weights that `checkpoints.keep` does not name."""
    # First what makes a checkpoint exist, because it must have its files.
    for path in sorted(_files(run), key=lambda path: path.suffix not in (".json", ".pt")):
        delete(path)
    kept = run.recipe.settings.checkpoints.kept
    for which in get_args(Weights):
        if which not in kept:
            forget(run.path, _name(run, which))
            run.weights_file(which).unlink(missing_ok=True)


def load_weights(run: Run) -> dict[str, Tensor]:
    """The weights of a run that are evaluated, on the CPU."""
    file = run.weights_file(run.weights)
    if not file.is_file():
        _explain_missing(run, file)
    try:
        check_file(run.path, _name(run, run.weights))
        return load_file(file)
    except FileNotFoundError:
        reason = "missing"
    except SafetensorError as error:
        reason = str(error)
    raise DamagedFileError(file, reason, f"delete {run.path} to train again")


def load_same_weights(run: Run) -> dict[str, Tensor]:
    """The same in several processes, all of which call it."""
    found: dict[str, Tensor] | DamagedFileError
    with processes.agreed():
        try:
            found = load_weights(run)
        except DamagedFileError as error:
            # Another machine may show the file that was there before, which is intact.
            found = error
    digests = processes.gathered(None if isinstance(found, DamagedFileError) else weights_digest(found.items()))
    with processes.agreed():
        # The machine of the main process wrote the file, so it shows the newest one.
        if isinstance(found, DamagedFileError) and digests[0] is None:
            raise found
        if len(set(digests)) > 1:
            raise UserError(
                f"{run.weights_file(run.weights)}: the processes read different versions of it, because their machines "
                "do not show the same files at the same time; wait a minute and run the same command again"
            )
    assert not isinstance(found, DamagedFileError), "raised above"
    return found


def _explain_missing(run: Run, file: Path) -> None:
    """Raise a UserError if it is known why the weights are missing."""
    checkpoints = run.recipe.settings.checkpoints
    if run.weights not in checkpoints.kept:
        recipe = ("--recipe", run.path / "recipe.yaml")
        command = as_command("train", *recipe, "--set", "checkpoints.keep=both", "--out", "FOLDER")
        raise UserError(
            f"{file}: not kept (checkpoints.keep: {checkpoints.keep}); to get these weights, train the run again in "
            f"another folder: `{command}`"
        )
    if run.other_weights:
        raise UserError(
            f"{file}: missing (earlier versions of cudt kept only the best weights); "
            f"leave out --weights, or delete {run.path} to train again"
        )
