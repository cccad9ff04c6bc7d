"""last.pt, the checkpoint of earlier versions of cudt; the next checkpoint replaces it.

It has no checksums. Code in it is not executed: torch reads it with weights_only, and of the pickled index of sharded
weights only the classes are allowed that describe tensors.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.run import Run
from cudt.training.checkpoint_file import damaged
from cudt.training.history import History
from cudt.training.shards import named_weights, parameters, parsed, state_of
from cudt.training.state import TrainingState
from cudt.utils import processes
from cudt.utils.errors import DataWarning, MachineFaultError, UserError

NAME = "last.pt"
#: The keys of `progress` that every version wrote.
_PROGRESS = {"epoch", "step", "step_in_epoch", "sigma_x", "best", "best_epoch", "best_slack"}
#: Modules whose dataclasses and enumerations the index of torch's distributed checkpoints may name.
_SAFE = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_SAFE_NAMES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
}


@dataclass(frozen=True)
class EarlierCheckpoint:
    """What last.pt and the files that it names contain."""

    progress: TrainingState
    tree: dict[str, Any]
    """Optimiser, descent and generators, as in the state of a checkpoint."""
    history: History
    weights: dict[str, Tensor] | Path
    """The weights, or the folder of shards of weights and optimiser."""


def read(run: Run) -> EarlierCheckpoint:
    """Read last.pt; a DamagedFileError if it lacks a key or has another kind of value there."""
    file = run.checkpoints / NAME
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of exceptions for a damaged file
        if isinstance(error, OSError):
            raise
        raise damaged(file, type(error).__name__) from None
    for key, kind in (("progress", dict), ("optimizer", dict), ("descent", dict), ("generator", Tensor)):
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise damaged(file, f"no {key}")
    optimizer = content["optimizer"]
    if not isinstance(optimizer.get("param_groups"), list) or not isinstance(optimizer.get("state", {}), dict):
        raise damaged(file, "no optimizer")
    # Earlier versions called it after CUDA, the only accelerator they knew.
    of_device = content.get("device_generator", content.get("cuda_generator"))
    main = {"generator": content["generator"], "device_generator": of_device}
    generators = [main, *content.get("other_generators", [])]
    tree = {"optimizer": optimizer, "descent": content["descent"], "generators": generators}
    return EarlierCheckpoint(_progress(run, content), tree, _history(run, content), _weights(run, content))


def _progress(run: Run, content: dict[str, Any]) -> TrainingState:
    progress = {**content["progress"], "validation_losses": content.get("validation_losses")}
    if not progress.keys() >= _PROGRESS or progress.keys() - {one.name for one in fields(TrainingState)}:
        raise damaged(run.checkpoints / NAME, "bad or missing keys of progress")
    state = TrainingState(**progress)
    if "best_multipliers" not in progress:
        # Ranks of the two rules cannot be compared.
        state.best = None
        if processes.is_main_process():
            warnings.warn(
                f"{run.path} was begun with cudt 0.1, which chose the best epoch by another rule; "
                "the best epoch is chosen among those that follow",
                DataWarning,
                stacklevel=2,
            )
    return state


def _history(run: Run, content: dict[str, Any]) -> History:
    for key, resume in (("history_bytes", History.resumed), ("history_length", History.resumed_after)):
        if isinstance(content.get(key), int):
            return resume(run, content[key])
    raise damaged(run.checkpoints / NAME, "no history_bytes")


def _weights(run: Run, content: dict[str, Any]) -> dict[str, Tensor] | Path:
    # The oldest versions kept the weights in last.pt itself.
    if isinstance(content.get("weights"), dict):
        return content["weights"]
    name = content.get("weights_file")
    if not isinstance(name, str) or Path(name).name != name:
        raise damaged(run.checkpoints / NAME, "no weights_file")
    if "state" not in content["optimizer"]:
        return run.checkpoints / name
    try:
        return load_file(run.checkpoints / name)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError):
            raise
        raise damaged(run.checkpoints / name, str(error)) from None


def load_distributed(
    folder: Path, layerwise: LayerwiseLosses, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
) -> None:
    """Read weights and optimiser of torch's distributed checkpoint; all processes call it together."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    class Reader(FileSystemReader):
        def read_metadata(self, *arguments: Any, **options: Any) -> Any:
            return _found(folder)

    weights, reader = named_weights(layerwise), Reader(folder)
    # Before the processes wait for each other in torch's functions.
    with processes.agreed():
        found = _found(folder).state_dict_metadata
        if weights.keys() != {name for name in found if not name.startswith("optimizer.")}:
            raise UserError(f"{folder}: the checkpoint does not fit this model; delete {folder.parent} to train again")
    moments, group = _empty_moments(optimizer, found), processes.patient_group()
    try:
        load(weights | moments, storage_reader=reader, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        rank, (first, _) = next(iter(error.failures.items()))
        if isinstance(first, OSError):
            raise MachineFaultError(str(first)) from None
        raise damaged(folder, f"process {rank}: {str(first) or type(first).__name__}") from None
    optimizer.load_state_dict({"state": state_of(moments), "param_groups": groups})


def _empty_moments(optimizer: torch.optim.Optimizer, found: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors to read those of a checkpoint into, in the shards of their parameters."""
    weights, moments = parameters(optimizer), {}
    for key, saved in found.items():
        if key.startswith("optimizer."):
            weight = weights[parsed(key)[0]]
            other = torch.empty(saved.size, dtype=saved.properties.dtype)
            moments[key] = torch.empty_like(weight) if saved.size == weight.shape else other
    return moments


def _found(folder: Path) -> Any:
    """The index of a distributed checkpoint."""
    try:
        with (folder / ".metadata").open("rb") as file:
            found = _SafeUnpickler(file).load()
    except Exception as error:  # a damaged file of pickle raises many kinds of exceptions
        if isinstance(error, OSError):
            raise
        raise damaged(folder, str(error) or type(error).__name__) from None
    return found


class _SafeUnpickler(pickle.Unpickler):
    """Reads pickled descriptions of tensors, and nothing that executes code."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        # A name with dots would reach what the module imports, such as `os.system`.
        if "." not in name and ((module, name) in _SAFE_NAMES or module in ("torch", *_SAFE)):
            found = super().find_class(module, name)
            if (module, name) in _SAFE_NAMES or isinstance(found, torch.dtype) or _describes(found, module):
                return found
        raise pickle.UnpicklingError(f"refused to load {module}.{name}")


def _describes(found: Any, module: str) -> bool:
    """Whether it is a dataclass or an enumeration of one of the safe modules itself."""
    is_plain = isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))
    return module in _SAFE and is_plain and found.__module__ == module
