"""Checkpoints, from which training resumes, and the weights of the best and of the last epoch."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cudt.config.schema import Weights
from cudt.method.descent import LayerwiseDescent
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.sharding import is_sharded
from cudt.runs.run import Run
from cudt.training import checkpoint_file
from cudt.training.checkpoint_file import (
    CheckpointFile,
    FileRecord,
    damage_of,
    damaged,
    write_tensors,
)
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
_OURS = re.compile(r"(checkpoint-|step-)|\.+(checkpoint-|step-|best\.|last\.)")


@dataclass
class Checkpoints:
    """Saves and restores everything that training changes.

    A checkpoint is checkpoint-<number>.json and the files that it names (checkpoint_file.py). None
    of them is ever changed, the JSON is written last, and older checkpoints are deleted after that:
    there is a complete one at any time. Two are kept, of two numbers of updates, so that the older
    one is used if a file of the newer is damaged. best.safetensors and last.safetensors are further
    names of files of weights.

    If the processes share the weights, their shards and those of the optimiser are in a folder
    instead (shards.py). All processes call these methods together; only the main one writes
    anything but shards, and the others wait for it.
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
    _history: History = field(default_factory=History, init=False)
    """What the main process read of history.csv to check it."""

    @property
    def folder(self) -> Path:
        return self.run.checkpoints

    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return bool(checkpoint_file.numbers_in(self.folder))

    # ---------------------------------------------------------------- saving

    def save(self, state: TrainingState, history: History) -> None:
        """Append to history.csv, write a checkpoint, and delete all but two."""
        generators = processes.gathered(random_state())
        shards = self._write_shards(state.step) if is_sharded(self.layerwise) else None
        if processes.is_main_process():
            history.append(self.run)
            self._write(state, history, generators, shards)
        processes.wait()

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
        tree = {
            "optimizer": optimizer,
            "descent": self.descent.state_dict(),
            "generators": generators,
        }
        plain, tensors = taken_apart(tree)
        file = checkpoint_file.file_of(self.folder, number)
        tensor_file = file.with_suffix(".safetensors")
        content = CheckpointFile(
            format=1,
            progress=replace(state),
            weights=f"step-{state.step}" if shards else next(iter(weights)),
            state=plain,
            state_file=tensor_file.name,
            history=history.saved(),
            files={**weights, tensor_file.name: write_tensors(tensor_file, tensors)},
        )
        checkpoint_file.write(file, content)
        self._keep(number, content)

    def _keep(self, number: int, content: CheckpointFile) -> None:
        """Delete all checkpoints but this one and the one before, and what killed processes
        left.
        """
        # The same weights in both would be damaged together.
        others = [one for one in self._kept if one[1].progress.step != content.progress.step]
        self._kept = [(number, content), *(others or self._kept)[:1]]
        kept = {checkpoint_file.file_of(self.folder, one).name for one, _ in self._kept}
        kept |= {name.split("/")[0] for _, one in self._kept for name in one.files}
        for path in _files(self.run):
            if path.name not in kept | self._written.keys():
                delete(path)

    def save_weights(self, which: Weights, step: int) -> None:
        """Name the weights after `step` updates best.safetensors or last.safetensors, if the recipe
        needs them.
        """
        settings = self.run.recipe.settings
        if which in settings.checkpoints.needed(settings.training.select):
            (name,) = self._write_weights(step)
            if processes.is_main_process():
                with self.run.replacing(_name(self.run, which)) as temporary:
                    link_or_copy(self.folder / name, temporary)
            processes.wait()

    def _write_shards(self, step: int) -> dict[str, FileRecord]:
        """The shards of weights and optimiser after `step` updates, by name; they are written
        once.
        """
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

        The checkpoint may be of another number of processes; one that it does not know seeds its
        generators.
        """
        self._kept = processes.from_main(self._intact() if processes.is_main_process() else [])
        _, content = self._kept[0]
        # Copied, because they are parts of the file otherwise, which the next checkpoints delete.
        tensors = {
            name: tensor.clone()
            for name, tensor in load_file(self.folder / content.state_file).items()
        }
        tree = put_together(content.state, tensors)
        self._load(tree, content)
        self._restore_rest(tree, content.progress)
        # The main process writes it.
        history = (
            self._history if processes.is_main_process() else History(size=content.history.bytes)
        )
        # A copy, because training changes it, and the checkpoint on disk stays as it is.
        return replace(content.progress), history

    def _intact(self) -> list[tuple[int, CheckpointFile]]:
        """The newest intact checkpoint and those before it; warns of damaged ones that are
        newer.
        """
        found: list[tuple[int, CheckpointFile]] = []
        damages: list[DamagedFileError] = []
        for number in checkpoint_file.numbers_in(self.folder):
            try:
                content = checkpoint_file.read(checkpoint_file.file_of(self.folder, number))
                if not found:
                    self._check(content)
                found.append((number, content))
            except DamagedFileError as error:
                if not found:
                    damages.append(error)
        if not found:
            raise damages[0]
        for one in damages:
            instead = f"resuming from update {found[0][1].progress.step} instead"
            warnings.warn(
                f"{one.path}: damaged ({one.reason}); {instead}", DataWarning, stacklevel=2
            )
        return found

    def _check(self, content: CheckpointFile) -> None:
        """Refuse a checkpoint of which a file, or the beginning of history.csv, is not as it was
        written.
        """
        for name, record in sorted(content.files.items()):
            if (reason := damage_of(self.folder / name, record)) is not None:
                raise damaged(self.folder / name, reason)
        self._history = History.resumed(self.run, content.history.bytes, content.history.sha256)

    def _load(self, tree: dict[str, Any], content: CheckpointFile) -> None:
        """Load weights and optimiser."""
        optimizer = tree["optimizer"]
        if content.weights in content.files:
            self.layerwise.load_learned_weights(load_file(self.folder / content.weights))
            self.optimizer.load_state_dict(sharded_moments(optimizer, self.optimizer))
            self._written = {content.weights: content.files[content.weights]}
        else:
            own = {
                name: one
                for name, one in content.files.items()
                if name.startswith(f"{content.weights}/")
            }
            files = sorted(
                (self.folder / name for name in own), key=lambda path: int(path.name.split("-")[0])
            )
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


def _name(run: Run, which: Weights) -> str:
    """The file of some weights, as checksums.json names it."""
    return str(run.weights_file(which).relative_to(run.path))


def _files(run: Run) -> list[Path]:
    """Everything that belongs to checkpoints, without the weights of the best and of the last
    epoch.
    """
    folder = run.checkpoints
    return [path for path in folder.iterdir() if _OURS.match(path.name)] if folder.is_dir() else []


def discard(run: Run) -> None:
    """Delete what a finished run no longer needs: its checkpoint, and weights that
    `checkpoints.keep` does not name.
    """
    # First what makes a checkpoint exist, because it must have its files.
    for path in sorted(_files(run), key=lambda path: path.suffix != ".json"):
        delete(path)
    kept = run.recipe.settings.checkpoints.kept
    for which in get_args(Weights):
        if which not in kept:
            run.forget(_name(run, which))
            run.weights_file(which).unlink(missing_ok=True)


def load_weights(run: Run) -> dict[str, Tensor]:
    """The weights of a run that are evaluated, on the CPU."""
    file = run.weights_file(run.weights)
    if not file.is_file():
        _explain_missing(run, file)
    try:
        run.check(_name(run, run.weights))
        return load_file(file)
    except FileNotFoundError:
        reason = "missing"
    except SafetensorError as error:
        reason = str(error)
    raise DamagedFileError(file, reason, f"delete {run.path} to train again")


def _explain_missing(run: Run, file: Path) -> None:
    """Raise a UserError if it is known why the weights are missing."""
    checkpoints = run.recipe.settings.checkpoints
    if run.weights not in checkpoints.kept:
        recipe = ("--recipe", run.path / "recipe.yaml")
        command = as_command("train", *recipe, "--set", "checkpoints.keep=both", "--out", "FOLDER")
        raise UserError(
            f"{file}: not kept (checkpoints.keep: {checkpoints.keep}); to get these weights, "
            "train the run again in "
            f"another folder: `{command}`"
        )
