"""Checkpoints of sharded models: each process writes its own part of weights and optimiser, any
number reads them.

The folder has one safetensors file for each process that wrote it,
`<process>-of-<processes>.safetensors`. A tensor's rows are in all of them, in the order of the
processes; a tensor that every process has whole is in the first one. torch's own distributed
checkpoints are not used, because they contain pickle, which can execute code.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.sharding import like, whole
from cudt.training.checkpoint_file import FileRecord, damaged, write_tensors
from cudt.training.state_tree import unshared
from cudt.utils import processes
from cudt.utils.errors import UserError
from cudt.utils.files import delete

_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."


def save_shards(
    folder: Path, layerwise: LayerwiseLosses, optimizer: torch.optim.Optimizer
) -> dict[str, FileRecord]:
    """Write weights and optimiser; return all files by name. All processes call it together."""
    if processes.is_main_process():
        # Of a process that died while saving.
        delete(folder)
        folder.mkdir(parents=True)
    processes.wait()
    values = {**named_weights(layerwise), **named_moments(optimizer)}
    shards = {name: part(value) for name, value in values.items()}
    mine = {
        name: shard
        for name, shard in shards.items()
        if shard is not values[name] or processes.is_main_process()  # whole in every process
    }
    file = folder / f"{processes.index()}-of-{processes.count()}.safetensors"
    record = write_tensors(file, unshared(mine))
    return dict(processes.gathered((f"{folder.name}/{file.name}", record)))


def load_shards(
    files: Sequence[Path],
    layerwise: LayerwiseLosses,
    optimizer: torch.optim.Optimizer,
    groups: list[dict[str, Any]],
) -> None:
    """Read weights and optimiser, whose groups of parameters have these options, from the files of
    all processes.
    """
    weights = named_weights(layerwise)
    with ExitStack() as opened:
        try:
            shards = _Shards(
                [opened.enter_context(safe_open(file, framework="pt")) for file in files]
            )
            if {name for name in shards.names if name.startswith(_WEIGHTS)} != weights.keys():
                raise UserError(f"{files[0].parent}: the checkpoint does not fit this model")
            for name, weight in weights.items():
                part(weight).copy_(shards.read(name, weight))
            moments = {
                name: _moment(shards, name, optimizer)
                for name in shards.names
                if name.startswith(_OPTIMIZER)
            }
        except (OSError, SafetensorError) as error:
            raise damaged(files[0].parent, str(error)) from None
    optimizer.load_state_dict({"state": state_of(moments), "param_groups": groups})


class _Shards:
    """The files of all processes that wrote a checkpoint, as one."""

    def __init__(self, files: Sequence[Any]) -> None:
        self._files = files
        self.names = list(dict.fromkeys(name for file in files for name in file.keys()))  # noqa: SIM118 (not a dict)

    def read(self, name: str, like: Tensor) -> Tensor:
        """This process's part of a whole tensor that is split as another one is."""
        wanted, found, first = rows(like), [], 0
        slices = [file.get_slice(name) for file in self._files if name in file.keys()]  # noqa: SIM118
        if self._shape(slices) != list(like.shape):
            raise UserError(f"{name}: shape {self._shape(slices)}, expected {list(like.shape)}")
        if not like.dim():
            return slices[0][...]
        for one in slices:
            length = one.get_shape()[0]
            start, stop = max(wanted.start - first, 0), min(wanted.stop - first, length)
            first += length
            if start < stop:
                found.append(one[start:stop])
        return torch.cat(found) if found else part(like).new_empty(0, *like.shape[1:])

    def whole(self, name: str) -> Tensor:
        """A tensor of another shape than its weight, which is not split."""
        return next(file.get_tensor(name).clone() for file in self._files if name in file.keys())  # noqa: SIM118

    def shape(self, name: str) -> list[int]:
        """The shape of the whole tensor."""
        return self._shape([file.get_slice(name) for file in self._files if name in file.keys()])  # noqa: SIM118

    @staticmethod
    def _shape(slices: Sequence[Any]) -> list[int]:
        shapes = [one.get_shape() for one in slices]
        return [sum(shape[0] for shape in shapes), *shapes[0][1:]] if shapes[0] else []


def _moment(shards: _Shards, name: str, optimizer: torch.optim.Optimizer) -> Tensor:
    """A tensor of the optimiser, in the shards of its parameter if it has an entry for each of its
    entries.
    """
    weight = parameters(optimizer)[parsed(name)[0]]
    if shards.shape(name) != list(weight.shape):
        return shards.whole(name)
    moment = torch.empty_like(weight)
    part(moment).copy_(shards.read(name, weight))
    return moment


def gathered_weights(layerwise: LayerwiseLosses, *, keep: bool) -> dict[str, Tensor]:
    """The learned weights, whole, in the processes that `keep` them; all processes call it
    together.

    Shards are gathered one weight at a time and kept on the CPU, because the device has no room for
    all of them.
    """
    found: dict[str, Tensor] = {}
    for name, weight in layerwise.learned_weights().items():
        value = whole(weight)
        if keep:
            found[name] = (value if value is weight else value.cpu()).contiguous()
    return found


def sharded_moments(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimiser of whole weights, for an optimiser of shards."""
    weights = parameters(optimizer)
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


def named_weights(layerwise: LayerwiseLosses) -> dict[str, Tensor]:
    """The learned weights themselves, not copies."""
    return {f"{_WEIGHTS}{name}": value for name, value in layerwise.learned_weights().items()}


def named_moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors of an optimiser, by the number of their parameter, which does not depend on the
    processes.
    """
    state = optimizer.state_dict()["state"]
    return {
        f"{_OPTIMIZER}{index}.{name}": value
        for index, values in state.items()
        for name, value in values.items()
    }


def state_of(moments: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """The state of an optimiser that has these tensors."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = parsed(key)
        state.setdefault(index, {})[name] = value
    return state


def _belongs(value: Any, weight: Tensor) -> bool:
    """Whether a value has an entry for each entry of its weight; the number of steps has not."""
    return isinstance(value, Tensor) and value.shape == weight.shape


def parsed(key: str) -> tuple[int, str]:
    """The number of the parameter and the name of its tensor."""
    index, name = key.removeprefix(_OPTIMIZER).split(".", 1)
    return int(index), name


def parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters in the order of their numbers."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def part(weight: Tensor) -> Tensor:
    """What this process holds of a weight: its shard, or the weight itself if it is not sharded."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def rows(weight: Tensor) -> slice:
    """Which rows of a whole weight are this process's part of it."""
    if not isinstance(weight, DTensor):
        return slice(0, len(weight) if weight.dim() else 1)
    # FSDP splits the rows as torch.chunk does.
    sizes = [
        len(chunk)
        for chunk in torch.empty(len(weight), device="meta").chunk(weight.device_mesh.size())
    ]
    start = sum(sizes[: weight.device_mesh.get_local_rank()])
    return slice(start, start + len(weight.to_local()))
