"""Checkpoints, from which training resumes exactly, and the weights of the best and the last epoch.

    checkpoints/checkpoint-7/    the two newest are kept until the run is finished
        model.safetensors        the trained weights
        state.pt                 optimiser, λ and slack, random generators, progress
        SHA256SUMS               the digests of these files, for `sha256sum --check`

A checkpoint is written into a temporary folder, which is renamed when it is complete. Where the
processes share the weights (FSDP2), a distributed checkpoint of torch with their shards of weights
and optimiser takes the place of model.safetensors. Its index is a pickle, which could run code: do
not resume a sharded run that you do not trust.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from cudt.config.schema import Weights
from cudt.method.descent import LayerwiseDescent
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.sharding import is_sharded, like, whole
from cudt.runs.run import Run
from cudt.utils.device import random_state, seed_process, set_random_state
from cudt.utils.errors import DamagedFileError, DataWarning, UserError
from cudt.utils.files import delete, digest_of

#: A row of history.csv: step, epoch, split, layer, name, value.
Row = tuple[int, int, str, int, str, float]
_HEADER = ("step", "epoch", "split", "layer", "name", "value")
_MODEL, _STATE, _DIGESTS = "model.safetensors", "state.pt", "SHA256SUMS"


@dataclass
class Checkpoints:
    """Saves and restores everything that training changes. All processes call these methods
    together; only the main one writes anything but shards.
    """

    run: Run
    layerwise: LayerwiseLosses
    optimizer: torch.optim.Optimizer
    descent: LayerwiseDescent
    accelerator: Accelerator
    _newest: int = 0
    """The checkpoint that was saved or restored last; 0 if there is none."""
    _history_bytes: int = 0
    """The size of history.csv with it."""

    def save(self, progress: dict[str, Any], rows: Sequence[Row]) -> None:
        """Append to history.csv, write a checkpoint, and delete all but it and the one before."""
        is_main = self.accelerator.is_main_process
        generators = gather_object([random_state()])
        number = max(_numbers(self.run), default=0) + 1
        temporary = self.run.checkpoints / f".checkpoint-{number}.tmp"
        if is_main:
            self._append(rows)
            delete(temporary)
            temporary.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        weights, optimizer = self.layerwise.learned_weights(), self.optimizer.state_dict()
        if is_sharded(self.layerwise):
            shards = {"model": weights, "optimizer": optimizer.pop("state")}
            state_dict_saver.save(shards, checkpoint_id=temporary)
        elif is_main:
            contiguous = {name: weight.contiguous() for name, weight in weights.items()}
            save_file(contiguous, temporary / _MODEL)
        if is_main:
            state = {
                "progress": progress,
                "history_bytes": self._history_bytes,
                "optimizer": optimizer,
                "descent": self.descent.state_dict(),
                "generators": generators,
            }
            with (temporary / _STATE).open("wb") as file:
                torch.save(state, file)
            (temporary / _DIGESTS).write_text(_digests(temporary))
            temporary.rename(_folder(self.run, number))
            _delete_all_but(self.run, [number, self._newest])
        self.accelerator.wait_for_everyone()
        self._newest = number

    def _append(self, rows: Sequence[Row]) -> None:
        """Append to history.csv. What it has beyond the checkpoint before is cut off: it is from
        updates that were interrupted before they were saved, and that have been repeated now.
        """
        path, is_new = self.run.path / "history.csv", self._history_bytes == 0
        with path.open("a", newline="", encoding="utf-8") as file:
            file.truncate(self._history_bytes)
            csv.writer(file, lineterminator="\n").writerows([_HEADER, *rows] if is_new else rows)
            file.flush()
            os.fsync(file.fileno())
        self._history_bytes = path.stat().st_size

    def restore(self) -> dict[str, Any] | None:
        """Load the newest checkpoint that is intact, and return the progress; None if there is
        none. It may be of another number of processes: one that it does not know is seeded.
        """
        if not _numbers(self.run):
            return None
        is_main, index = self.accelerator.is_main_process, self.accelerator.process_index
        (number,) = broadcast_object_list([_newest_intact(self.run) if is_main else None])
        state = torch.load(_folder(self.run, number) / _STATE, weights_only=True)
        self._newest, self._history_bytes = number, state["history_bytes"]
        self._load_weights(_folder(self.run, number), state["optimizer"])
        self.descent.load_state_dict(state["descent"])
        if index < len(state["generators"]):
            set_random_state(state["generators"][index])
        else:
            seed_process(self.run.recipe.settings.seed, state["progress"]["step"], index)
        return state["progress"]

    def _load_weights(self, folder: Path, optimizer: dict[str, Any]) -> None:
        """Load weights and optimiser; either may be in shards now, whether or not it was before."""
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        if (folder / _MODEL).is_file():
            self.layerwise.load_learned_weights(load_file(folder / _MODEL))
            moments = {
                index: {
                    key: like(one, params[index]) if one.dim() else one
                    for key, one in all_of.items()
                }
                for index, all_of in optimizer["state"].items()
            }
        else:
            # torch reads into tensors that are there already. A weight that never had a gradient
            # has no moments in the checkpoint: 0 is the same.
            moments = {
                index: {"step": torch.zeros(()), "exp_avg": zero, "exp_avg_sq": zero.clone()}
                for index, zero in enumerate(map(torch.zeros_like, params))
            }
            held = {"model": self.layerwise.learned_weights(), "optimizer": moments}
            planner = DefaultLoadPlanner(allow_partial_load=True)
            state_dict_loader.load(held, checkpoint_id=folder, planner=planner)
        self.optimizer.load_state_dict({**optimizer, "state": moments})

    def save_weights(self, which: Weights) -> None:
        """Write best.safetensors or last.safetensors."""
        weights, is_main = dict[str, Tensor](), self.accelerator.is_main_process
        for name, weight in self.layerwise.learned_weights().items():
            # Shards are gathered one weight at a time: a device may have no room for all.
            gathered = whole(weight)
            if is_main:
                weights[name] = gathered.cpu().contiguous()
        if is_main:
            with self.run.replacing(f"checkpoints/{which}.safetensors") as temporary:
                save_file(weights, temporary)
        self.accelerator.wait_for_everyone()


def load_weights(run: Run) -> dict[str, Tensor]:
    """The weights of a run that are evaluated, on the CPU."""
    file, keep = run.weights_file(run.weights), run.recipe.settings.checkpoints
    if not file.is_file() and run.weights not in keep.kept:
        raise UserError(
            f"{file}: not kept (checkpoints.keep: {keep.keep}); train the run again in another "
            "folder, with checkpoints.keep=both"
        )
    run.check(f"checkpoints/{file.name}")
    return load_file(file)


def discard(run: Run) -> None:
    """Delete the checkpoints of a finished run, and weights that `checkpoints.keep` leaves out."""
    _delete_all_but(run, [])
    kept = run.recipe.settings.checkpoints.kept
    run.delete(*(f"checkpoints/{one}.safetensors" for one in get_args(Weights) if one not in kept))


def _folder(run: Run, number: int) -> Path:
    return run.checkpoints / f"checkpoint-{number}"


def _numbers(run: Run) -> list[int]:
    """The numbers of the checkpoints of a run, the newest first."""
    found = run.checkpoints.glob("checkpoint-*")
    return sorted((int(path.name.removeprefix("checkpoint-")) for path in found), reverse=True)


def _delete_all_but(run: Run, numbers: Sequence[int]) -> None:
    """Delete checkpoints, and the temporary files of processes that were killed."""
    kept = [_folder(run, number) for number in numbers]
    for path in [*run.checkpoints.glob("checkpoint-*"), *run.checkpoints.glob(".*")]:
        if path not in kept:
            delete(path)


def _digests(folder: Path) -> str:
    """The lines of SHA256SUMS."""
    files = sorted(path for path in folder.iterdir() if path.name != _DIGESTS)
    return "".join(f"{digest_of(path)}  {path.name}\n" for path in files)


def _newest_intact(run: Run) -> int:
    """The number of the newest checkpoint that is as it was written; warns of newer ones."""
    for number in _numbers(run):
        folder = _folder(run, number)
        sums = folder / _DIGESTS
        if sums.is_file() and sums.read_bytes() == _digests(folder).encode():
            return number
        warnings.warn(f"{folder}: damaged (see {_DIGESTS}); skipped", DataWarning, stacklevel=2)
    raise DamagedFileError(
        f"{run.checkpoints}: no checkpoint is intact; delete it to train from the beginning"
    )
