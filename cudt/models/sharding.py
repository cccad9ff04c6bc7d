"""Shards: each process holds a part of every weight, for models that do not fit one device (FSDP2).

The weights of a layer are gathered just before it computes, forward and backward, and freed after
it. All other weights (embeddings, final norm, head) are gathered for a whole pass, because the
readout of every layer uses them.

`fully_shard` is called here: `Accelerator.prepare` shards no model on the CPU, finds embeddings and
head by their names, and adds up the gradients of micro-batches unsharded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn

from cudt.utils import processes


def is_asked_for() -> bool:
    """Whether the launcher asks several processes to share the weights."""
    return processes.count() > 1 and parse_flag_from_env("ACCELERATE_USE_FSDP")


def prepared(layerwise: Any, accelerator: Accelerator) -> nn.Module:
    """The module that updates call, whose gradients are averaged over the processes."""
    if not is_asked_for():
        return accelerator.prepare(layerwise)
    _shard(layerwise, accelerator)
    return layerwise


def _shard(layerwise: Any, accelerator: Accelerator) -> None:
    """Shard a model, which every process has built on the CPU, and its layer losses in place."""
    # Imported here and below: it takes more than a second, and few runs are sharded.
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    kind, is_mixed = accelerator.device.type, accelerator.mixed_precision == "bf16"
    mesh = init_device_mesh(kind, (accelerator.num_processes,))
    dtypes = (torch.bfloat16, torch.float32) if is_mixed else (None, None)
    policy = fsdp.MixedPrecisionPolicy(*dtypes)
    frees = parse_flag_from_env("FSDP_RESHARD_AFTER_FORWARD", True)
    for weight in layerwise.parameters():
        # FSDP shards no others.
        weight.data = weight.data.contiguous()
    for layer in layerwise.model.layer_modules():
        fsdp.fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=frees)
    # Resharded after every pass, also one without a backward pass, so that weights are always
    # shards between passes.
    fsdp.fully_shard(layerwise, mesh=mesh, reshard_after_forward=True)
    if is_mixed:
        for name in ("forward", "judge"):
            # What is outside of the layers computes in their format, too; without the cache, which
            # would keep copies of the layers' weights until the end of the pass.
            autocast = torch.autocast(kind, torch.bfloat16, cache_enabled=False)
            setattr(layerwise, name, autocast(getattr(layerwise, name)))
    fsdp.register_fsdp_forward_method(layerwise, "judge")

    @contextmanager
    def gathered() -> Iterator[None]:
        layerwise.unshard()
        try:
            yield
        finally:
            layerwise.reshard()

    layerwise.model.weights_outside_passes = gathered


def is_sharded(module: nn.Module) -> bool:
    """Whether the weights of a module are shards."""
    return hasattr(module, "unshard")


def whole(weight: Any) -> Tensor:
    """A weight, gathered from all processes if it is sharded; then all of them must call it."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def like(value: Tensor, weight: Any) -> Tensor:
    """This process's shard of a whole tensor, if a weight is sharded; otherwise the tensor."""
    if not hasattr(weight, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole tensor, so that nothing is sent. A shard is a view of it.
    mesh, placements = weight.device_mesh, weight.placements
    return distribute_tensor(value, mesh, placements, src_data_rank=None).clone()
