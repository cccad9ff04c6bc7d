"""Checkpoints of sharded models: each process writes and reads its own part of weights and optimiser.

The folder is torch's distributed checkpoint. Any number of processes can read it, sharded or not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.sharding import like, whole
from cudt.utils import processes
from cudt.utils.errors import UserError
from cudt.utils.files import delete

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader

_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."


def save_shards(folder: Path, layerwise: LayerwiseLosses, optimizer: torch.optim.Optimizer) -> None:
    """Write weights and optimiser; all processes call it together, and the folder is complete when it returns."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    if processes.is_main_process():
        # Of a process that died while saving.
        delete(folder)
        folder.mkdir(parents=True)
    processes.wait()
    # In the group without a limit, because processes may write at different speeds.
    group = processes.patient_group()
    try:
        save(_weights(layerwise) | _moments(optimizer), storage_writer=FileSystemWriter(folder), process_group=group)
    except CheckpointException as error:
        raise UserError(f"{folder}: not written ({_reason(error)}); run the same command again to resume") from None


def load_shards(
    folder: Path, layerwise: LayerwiseLosses, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
) -> None:
    """Read weights and optimiser, whose groups of parameters have these options."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader, weights = FileSystemReader(folder), _weights(layerwise)
    # Before the processes wait for each other in torch's functions.
    with processes.agreed():
        found = _found(reader, folder)
        if weights.keys() != {name for name in found if name.startswith(_WEIGHTS)}:
            raise UserError(f"{folder}: the checkpoint does not fit this model; delete {folder.parent} to train again")
    moments, group = _empty_moments(optimizer, found), processes.patient_group()
    try:
        load(weights | moments, storage_reader=reader, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        raise _damaged(folder, _reason(error)) from None
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = _parsed(key)
        state.setdefault(index, {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _found(reader: FileSystemReader, folder: Path) -> dict[str, Any]:
    """What a checkpoint contains, by name."""
    try:
        return reader.read_metadata().state_dict_metadata
    except Exception as error:  # a damaged file of pickle raises many kinds of exceptions
        raise _damaged(folder, str(error)) from None


def _damaged(folder: Path, reason: str) -> UserError:
    return UserError(
        f"{folder}: missing or damaged ({reason}); delete {folder.with_name('last.pt')} to train from the beginning"
    )


def _reason(error: CheckpointException) -> str:
    """The first error of a process, without the tracebacks of all of them."""
    rank, (first, _) = next(iter(error.failures.items()))
    return f"process {rank}: {str(first) or type(first).__name__}"


def gathered_weights(layerwise: LayerwiseLosses, *, keep: bool) -> dict[str, Tensor]:
    """The learned weights, whole, in the processes that `keep` them; all processes call it together.

    Shards are gathered one weight at a time and kept on the CPU, because the device has no room for all of them.
    """
    found: dict[str, Tensor] = {}
    for name, weight in layerwise.learned_weights().items():
        value = whole(weight)
        if keep:
            found[name] = (value if value is weight else value.cpu()).contiguous()
    return found


def sharded_moments(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimiser of whole weights, for an optimiser of shards."""
    weights = _parameters(optimizer)
    return {
        **state,
        "state": {
            index: {
                name: like(value, weights[index]) if _belongs(value, weights[index]) else value
                for name, value in values.items()
            }
            for index, values in state["state"].items()
        },
    }


def _weights(layerwise: LayerwiseLosses) -> dict[str, Tensor]:
    """The learned weights themselves, not copies."""
    return {f"{_WEIGHTS}{name}": value for name, value in layerwise.learned_weights().items()}


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors of an optimiser, by the number of their parameter, which does not depend on the processes."""
    state = optimizer.state_dict()["state"]
    return {f"{_OPTIMIZER}{index}.{name}": value for index, values in state.items() for name, value in values.items()}


def _empty_moments(optimizer: torch.optim.Optimizer, found: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors to read those of a checkpoint into, in the shards of their parameters."""
    weights, moments = _parameters(optimizer), {}
    for key, saved in found.items():
        if key.startswith(_OPTIMIZER):
            weight = weights[_parsed(key)[0]]
            other = torch.empty(saved.size, dtype=saved.properties.dtype)
            moments[key] = torch.empty_like(weight) if saved.size == weight.shape else other
    return moments


def _belongs(value: Any, weight: Tensor) -> bool:
    """Whether a value has an entry for each entry of its weight; the number of steps has not."""
    return isinstance(value, Tensor) and value.shape == weight.shape


def _parsed(key: str) -> tuple[int, str]:
    """The number of the parameter and the name of its tensor."""
    index, name = key.removeprefix(_OPTIMIZER).split(".", 1)
    return int(index), name


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
