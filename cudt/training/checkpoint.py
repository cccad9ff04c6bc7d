"""Checkpoints, from which training resumes, and the weights of the best and of the last epoch."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from cudt.config.schema import Weights
from cudt.method.descent import LayerwiseDescent
from cudt.models.layer_losses import LayerwiseLosses, weights_digest
from cudt.models.sharding import is_sharded
from cudt.runs.run import Run
from cudt.training.history import History
from cudt.training.shards import gathered_weights, load_shards, save_shards, sharded_moments
from cudt.utils import processes
from cudt.utils.device import RandomState, random_state, seed_process, set_random_state
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import delete, link_or_copy, replacing, write_atomically


@dataclass
class TrainingState:
    """How far training is, and its best epoch so far."""

    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0
    sigma_x: float = math.nan
    best: list[float] | None = None
    """The rank of the best epoch; lower is better, compared from left to right."""
    best_epoch: int = 0
    best_slack: list[float] = field(default_factory=list)
    """In units of the loss, at the end of the best epoch, before it restarts."""
    last_slack: list[float] = field(default_factory=list)
    """The same of the last epoch."""
    best_multipliers: list[float] | None = None
    validation_losses: list[float] | None = None
    """Of the last validation, by layer."""


@dataclass
class Checkpoints:
    """Saves and restores everything that training changes.

    A checkpoint is last.pt and what it names: the weights, in a file named after the number of updates, and the length
    of history.csv. last.pt is written after both and replaced at once, and older weights are deleted after that, so
    that there is a complete checkpoint at any time. Files of weights are never changed, only replaced: best.safetensors
    and last.safetensors are further names of them.

    If the processes share the weights, their shards and those of the optimiser are in a folder instead (shards.py). All
    processes call these methods together; only the main one writes anything but shards. The others wait for it in
    `agreed`, which takes as long as it takes; in the next update they would take it for lost.
    """

    run: Run
    layerwise: LayerwiseLosses
    optimizer: torch.optim.Optimizer
    descent: LayerwiseDescent
    _written: Path | None = field(default=None, init=False)
    """The weights as they are now, if they are on disk."""
    _written_shards: Path | None = field(default=None, init=False)
    """The same as shards."""

    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.run.last_checkpoint.is_file()

    def save(self, state: TrainingState, history: History, *, lost: bool = False) -> None:
        """Append to history.csv, write the weights and last.pt, and delete the weights of earlier checkpoints.

        `lost` says that another process ended, so that the main one saves what it has.
        """
        generators = [random_state()] if lost else processes.gathered(random_state())
        with contextlib.nullcontext() if lost else processes.agreed():
            shards = self._write_shards(state.step) if is_sharded(self.layerwise) else None
            if processes.is_main_process():
                history.append(self.run)
                self._write_last(state, history, generators, shards)

    def _write_last(
        self, state: TrainingState, history: History, generators: list[RandomState], shards: Path | None
    ) -> None:
        """Write last.pt, after the weights if they are not in shards; then delete those of earlier checkpoints."""
        weights = shards or self._write_weights(state.step)
        optimizer = self.optimizer.state_dict()
        progress = dataclasses.asdict(state)
        validation_losses = progress.pop("validation_losses")
        content = {
            "progress": progress,
            "validation_losses": validation_losses,
            "weights_file": weights.name,
            # That of shards is with them.
            "optimizer": optimizer if shards is None else {"param_groups": optimizer["param_groups"]},
            "descent": self.descent.state_dict(),
            "history_bytes": history.size,
            **generators[0],
            "other_generators": [*generators[1:]],
        }
        write_atomically(self.run.last_checkpoint, lambda file: torch.save(content, file))
        for path in self.run.checkpoint_weights():
            if path.stem != weights.stem:
                delete(path)

    def restore(self) -> tuple[TrainingState, History]:
        """Load last.pt into model, optimisers and random generators; return the state and the history.

        The checkpoint may be of another number of processes; one that it does not know seeds its generators.
        """
        content = load_last(self.run)
        optimizer = content["optimizer"]
        if "state" in optimizer:
            self.layerwise.load_learned_weights(self._load_weights(content))
            self.optimizer.load_state_dict(sharded_moments(optimizer, self.optimizer))
        else:
            shards = self.run.last_checkpoint.with_name(content["weights_file"])
            load_shards(shards, self.layerwise, self.optimizer, optimizer["param_groups"])
            self._written_shards = shards
        self.descent.load_state_dict(content["descent"])
        self._restore_generators(content)
        state = TrainingState(**content["progress"], validation_losses=content["validation_losses"])
        if "best_multipliers" not in content["progress"]:
            # Ranks of the two rules cannot be compared.
            state.best = None
            warnings.warn(
                f"{self.run.path} was begun with cudt 0.1, which chose the best epoch by another rule; "
                "the best epoch is chosen among those that follow",
                DataWarning,
                stacklevel=2,
            )
        return state, _history(self.run, content)

    def _restore_generators(self, content: dict[str, Any]) -> None:
        # Earlier versions called it after CUDA, the only accelerator they knew.
        of_device = content.get("device_generator", content.get("cuda_generator"))
        main: RandomState = {"generator": content["generator"], "device_generator": of_device}
        known, process = [main, *content.get("other_generators", [])], processes.index()
        if process < len(known):
            set_random_state(known[process])
        else:
            seed_process(self.run.recipe.settings.seed, content["progress"]["step"], process)

    def save_weights(self, which: Weights, step: int) -> None:
        """Name the weights after `step` updates best.safetensors or last.safetensors, if the recipe needs them."""
        settings = self.run.recipe.settings
        if which in settings.checkpoints.needed(settings.training.select):
            with processes.agreed():
                weights = self._write_weights(step)
                if processes.is_main_process():
                    link_or_copy(weights, self.run.weights_file(which))

    def _write_shards(self, step: int) -> Path:
        """The folder of the shards of weights and optimiser after `step` updates; it is written once."""
        path = self.run.path / "checkpoints" / f"step-{step}"
        if path != self._written_shards:
            save_shards(path, self.layerwise, self.optimizer)
            self._written_shards = path
        return path

    def _write_weights(self, step: int) -> Path:
        """The file of the weights after `step` updates; it is written once."""
        path = self.run.path / "checkpoints" / f"step-{step}.safetensors"
        if path != self._written:
            weights = gathered_weights(self.layerwise, keep=processes.is_main_process())
            if processes.is_main_process():
                with replacing(path) as temporary:
                    save_file(weights, temporary)
            self._written = path
        return path

    def _load_weights(self, content: dict[str, Any]) -> dict[str, Tensor]:
        # Earlier versions kept the weights in last.pt itself.
        if "weights" in content:
            return content["weights"]
        self._written = self.run.last_checkpoint.with_name(content["weights_file"])
        try:
            return load_file(self._written)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{self._written}: missing or damaged ({error}); "
                f"delete {self.run.last_checkpoint} to train from the beginning"
            ) from None


def discard(run: Run) -> None:
    """Delete what a finished run no longer needs: its checkpoint, and weights that `checkpoints.keep` does not name."""
    # First, because a checkpoint must have its weights.
    run.last_checkpoint.unlink(missing_ok=True)
    kept = run.recipe.settings.checkpoints.kept
    unneeded = [run.weights_file(which) for which in get_args(Weights) if which not in kept]
    for path in [*run.checkpoint_weights(), *unneeded]:
        delete(path)


def _history(run: Run, content: dict[str, Any]) -> History:
    if "history_bytes" in content:
        return History.resumed(run, content["history_bytes"])
    return History.resumed_after(run, content["history_length"])


def load_last(run: Run) -> dict[str, Any]:
    """The content of last.pt, on the CPU; code in the file is not executed."""
    try:
        return torch.load(run.last_checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of exceptions for a damaged file
        raise UserError(
            f"{run.last_checkpoint}: damaged ({type(error).__name__}); delete it to train from the beginning"
        ) from None


def load_weights(run: Run) -> dict[str, Tensor]:
    """The weights of a run that are evaluated, on the CPU."""
    file = run.weights_file(run.weights)
    if not file.is_file():
        _explain_missing(run, file)
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: missing or damaged ({error}); delete {run.path} to train again") from None


def load_same_weights(run: Run) -> dict[str, Tensor]:
    """The same in several processes, all of which call it."""
    with processes.agreed():
        weights = load_weights(run)
    check_same(run.weights_file(run.weights), weights_digest(weights.items()))
    return weights


def check_same(file: Path, content: Any) -> None:
    """Refuse a file of which the processes have read different versions; `content` is what this one has read of it."""
    with processes.agreed():
        if len({repr(one) for one in processes.gathered(content)}) > 1:
            raise UserError(
                f"{file}: the processes read different versions of it, because their machines do not show the same "
                "files at the same time; wait a minute and run the same command again"
            )


def _explain_missing(run: Run, file: Path) -> None:
    """Raise a UserError if it is known why the weights are missing."""
    checkpoints = run.recipe.settings.checkpoints
    if run.weights not in checkpoints.kept:
        command = f"cudt train --recipe {run.path / 'recipe.yaml'} --set checkpoints.keep=both --out FOLDER"
        raise UserError(
            f"{file}: not kept (checkpoints.keep: {checkpoints.keep}); to get these weights, train the run again in "
            f"another folder: `{command}`"
        )
    if run.other_weights:
        raise UserError(
            f"{file}: missing (earlier versions of cudt kept only the best weights); "
            f"leave out --weights, or delete {run.path} to train again"
        )
