"""Shards: each process holds a part of every weight, for models that do not fit one device (FSDP2).

The weights of a layer are gathered just before it computes, forward and backward, and freed after
it. All other weights (embeddings, final norm, head) are gathered for a whole pass, because the
readout of every layer uses them.

Accelerate launches the processes, reads the settings of FSDP and sums over processes. `fully_shard`
is called here: `Accelerator.prepare` shards no model on the CPU, finds embeddings and head by their
names, and adds up the gradients of micro-batches unsharded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin, parse_flag_from_env
from torch import Tensor, nn

from cudt.models.base import LayeredModel
from cudt.utils import processes
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Sharding:
    """How the processes of a training share its weights."""

    device: torch.device
    dtype: torch.dtype | None = None
    """The number format in which layers are gathered and computed; None for that of the weights."""
    reshard_after_forward: bool = True
    """Whether the weights of a layer are freed between its forward and its backward pass."""


def is_asked_for() -> bool:
    """Whether the launcher asks several processes to share the weights."""
    return processes.count() > 1 and parse_flag_from_env("ACCELERATE_USE_FSDP")


def sharding_for(accelerator: Accelerator) -> Sharding | None:
    """How the configuration file of `accelerate launch` shares the weights; None if weights are not
    sharded.
    """
    if not is_asked_for() or accelerator.num_processes == 1:
        return None
    # Imported here and below: it takes more than a second, and few runs are sharded.
    from torch.distributed.fsdp import CPUOffloadPolicy

    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise UserError("fsdp_version: cudt shards with FSDP2; set fsdp_config.fsdp_version to 2")
    plugin = FullyShardedDataParallelPlugin()
    if plugin.activation_checkpointing:
        raise UserError(
            "fsdp_activation_checkpointing: set it to false; the recipe's "
            "model.gradient_checkpointing does the same"
        )
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        raise UserError(
            "fsdp_offload_params: cudt keeps weights on their devices; set it to false and add "
            "devices"
        )
    dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else None
    return Sharding(accelerator.device, dtype, plugin.reshard_after_forward is True)


def shard(layerwise: Any, model: LayeredModel, sharding: Sharding) -> None:
    """Shard a model and its layer losses in place, layer by layer: all of it need not fit the
    device at once.

    Every process has built the same model, on the CPU.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = init_device_mesh(sharding.device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(
        param_dtype=sharding.dtype, reduce_dtype=torch.float32 if sharding.dtype else None
    )
    for weight in layerwise.parameters():
        # FSDP shards no others.
        weight.data = weight.data.contiguous()
    for layer in model.layer_modules():
        fully_shard(
            layer, mesh=mesh, mp_policy=policy, reshard_after_forward=sharding.reshard_after_forward
        )
    # Resharded after every pass, also one without a backward pass, so that weights are always
    # shards between passes.
    fully_shard(layerwise, mesh=mesh, reshard_after_forward=True)
    if sharding.dtype is not None:
        for name in ("forward", "judge"):
            # What is outside of the layers computes in their format, too; without the cache, which
            # would keep copies of the layers' weights until the end of the pass.
            autocast = torch.autocast(sharding.device.type, sharding.dtype, cache_enabled=False)
            setattr(layerwise, name, autocast(getattr(layerwise, name)))
    register_fsdp_forward_method(layerwise, "judge")
    depth = 0

    @contextmanager
    def gathered() -> Iterator[None]:
        """The weights outside of the layers are whole; it may be entered again inside itself."""
        nonlocal depth
        if depth == 0:
            layerwise.unshard()
        depth += 1
        try:
            yield
        finally:
            depth -= 1
            if depth == 0:
                layerwise.reshard()

    model.weights_outside_passes = gathered


def prepared(layerwise: nn.Module, model: LayeredModel, accelerator: Accelerator) -> nn.Module:
    """The module that updates call, whose gradients are averaged over the processes."""
    if (sharding := sharding_for(accelerator)) is not None:
        shard(layerwise, model, sharding)
        return layerwise
    return accelerator.prepare(layerwise)


def is_sharded(module: nn.Module) -> bool:
    """Whether `shard` was called for a module."""
    return hasattr(module, "unshard")


def whole(weight: Tensor) -> Tensor:
    """A weight, gathered from all processes if it is sharded; then all of them must call it."""
    return weight.full_tensor() if _is_shard(weight) else weight


def like(value: Tensor, weight: Tensor) -> Tensor:
    """This process's shard of a whole tensor, if a weight is sharded; otherwise the tensor, in the
    weight's order.

    Fused optimisers read weight and moments in the order of their memory. Orthogonal weights have
    another order than the tensors of a file.
    """
    if not _is_shard(weight):
        if value.stride() == weight.stride():
            return value
        return torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole tensor, so that nothing is sent. Cloned, because the shard is a
    # view of it.
    mesh, placements = weight.device_mesh, weight.placements
    return distribute_tensor(value, mesh, placements, src_data_rank=None).clone()


def _is_shard(weight: Tensor) -> TypeGuard[DTensor]:
    return hasattr(weight, "full_tensor")
