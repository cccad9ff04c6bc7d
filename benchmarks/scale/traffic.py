"""Bytes that processes send to each other in an update, measured on the sockets of gloo and compared with a formula.

DDP sums the gradients of all trained weights. In a ring every process sends 2·(N−1)/N of their bytes. FSDP, sharded by
cudt itself, gathers all weights twice, for the forward and for the backward pass, and scatters the sums of the
gradients. A gather and a scatter each send (N−1)/N of the bytes; gloo's scatter is a whole sum and sends twice as much,
which NCCL's does not. The losses f add two sums of L + 2 numbers.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.scale import formulas
from benchmarks.scale.shapes import Shape

Way = Literal["ddp", "fsdp"]

#: Where the kernel's tcp_info has the bytes that were acknowledged; those that were received follow.
_ACKNOWLEDGED = 120
_UPDATES = 4
_GRADIENT = 4


@dataclass(frozen=True)
class Sent:
    """The bytes that one process sends in an update."""

    way: Way
    shape: Shape
    processes: int
    bytes: int
    """Of a number of a layer that FSDP gathers: 4 in fp32, 2 with `training.precision: bf16`."""
    measured: float
    formula: float


def bytes_sent(way: Way, shape: Shape, processes: int, *, scatter: int = 1, layers: int = 4, outside: int = 4) -> float:
    """Bytes that a process sends in an update.

    `scatter` is 2 for gloo. `layers` and `outside` are the bytes of a number of a layer and of the embeddings and the
    head; gradients have 4.
    """
    weights, share = formulas.weights(shape), (processes - 1) / processes
    if way == "ddp":
        return 2 * share * _GRADIENT * weights.trained
    gathered = layers * shape.layers * weights.in_a_layer + outside * weights.outside(shape.layers)
    return share * (2 * gathered + scatter * _GRADIENT * weights.trained)


def measure(way: Way, shape: Shape, processes: int, layers: int = 4) -> Sent:
    """Run some updates in processes of their own; `layers` as in `bytes_sent`."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    ranks = [
        context.Process(target=_rank, args=(rank, way, shape, processes, layers, port, results))
        for rank in range(processes)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise RuntimeError(f"{way} on {processes} processes failed; its error is printed above")
    formula = bytes_sent(way, shape, processes, scatter=2, layers=layers)
    return Sent(way, shape, processes, layers, results.get(), formula)


def _rank(rank: int, way: Way, shape: Shape, processes: int, layers: int, port: int, results: Any) -> None:
    import torch
    from torch import distributed

    from benchmarks.scale.networks import Work

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=processes)
    work = Work(shape)
    wrapped = _wrapped(way, work.layerwise, layers)
    optimizer = torch.optim.Adam([weight for weight in wrapped.parameters() if weight.requires_grad])
    # The first two updates make connections and buckets.
    before = 0
    for number in range(2 + _UPDATES):
        if number == 2:
            distributed.barrier()
            before = _sent()
        wrapped(work.batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.barrier()
    if rank == 0:
        results.put((_sent() - before) / _UPDATES)
    distributed.destroy_process_group()


def _wrapped(way: Way, layerwise: Any, layers: int) -> Any:
    if way == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(layerwise)
    import torch

    from cudt.models.sharding import Sharding, shard

    shard(layerwise, layerwise.model, Sharding(torch.device("cpu"), torch.bfloat16 if layers == 2 else None))
    return layerwise


def _sent() -> int:
    """Bytes that all TCP connections of this process have sent so far, as the kernel counts them."""
    total = 0
    for path in Path("/proc/self/fd").iterdir():
        try:
            is_socket = path.readlink().name.startswith("socket:")
            one = socket.socket(fileno=os.dup(int(path.name))) if is_socket else None
        except OSError:
            # The folder that is being listed.
            continue
        if one is None:
            continue
        with one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", info, _ACKNOWLEDGED)[0]
    return total


def cases(quick: bool) -> list[tuple[Way, Shape, int, int]]:
    """What is measured: the arguments of `measure`."""
    encoder = Shape("encoder", 4, 256, 1024, 16, heads=4, words=1000)
    causal = Shape("causal", 4, 256, 512, 16, 4, 64, 1000, read=8)
    full = replace(causal, lora=False)
    found: list[tuple[Way, Shape, int]] = [("ddp", encoder, 4), ("ddp", causal, 4), ("fsdp", causal, 4)]
    found += [("fsdp", full, 4), ("fsdp", full, 2)]
    counts = (2,) if quick else (2, 3)
    return [(way, shape, processes, layers) for way, shape, layers in found for processes in counts]
