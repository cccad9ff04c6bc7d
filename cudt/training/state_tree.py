"""Nested states of optimisers and generators as JSON and tensors: no pickle, and every number comes
back as it was.

JSON has no tuples, no keys that are numbers and no tensors, so each of these is an object with one
key:

    (0.9, 0.999)        {"tuple": [0.9, 0.999]}
    {0: {"lr": 0.1}}    {"dict": [[0, {"dict": [["lr", 0.1]]}]]}
    a tensor            {"tensor": "its name in the safetensors file"}

Floats are written with as many digits as they need; NaN, infinities and integers of any size are
written as Python writes them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cudt.utils.errors import UserError

Tensors = dict[str, Tensor]


def taken_apart(tree: Any) -> tuple[Any, Tensors]:
    """What JSON can say of a tree, and its tensors by name, each on the CPU and in memory of its
    own.
    """
    tensors: Tensors = {}
    return _plain(tree, "state", tensors), unshared(tensors)


def unshared(tensors: Tensors) -> Tensors:
    """Tensors on the CPU, each in memory of its own: safetensors refuses two that share it."""
    used: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        memory = own.untyped_storage().data_ptr()
        found[name] = own.clone() if memory in used else own
        used.add(memory)
    return found


def put_together(plain: Any, tensors: Tensors) -> Any:
    """The tree that `taken_apart` took apart; a KeyError, TypeError or ValueError for anything
    else.
    """
    if isinstance(plain, list):
        return [put_together(one, tensors) for one in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(put_together(one, tensors) for one in content)
    if kind == "dict":
        return {key: put_together(value, tensors) for key, value in content}
    raise ValueError(f"unknown kind '{kind}'")


def _plain(tree: Any, name: str, tensors: Tensors) -> Any:
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, Tensor) and tree.layout == torch.strided:
        unique = f"{len(tensors)}.{name}"
        tensors[unique] = tree
        return {"tensor": unique}
    if isinstance(tree, dict) and all(isinstance(key, str | int) for key in tree):
        return {
            "dict": [[key, _plain(value, f"{name}.{key}", tensors)] for key, value in tree.items()]
        }
    if isinstance(tree, list | tuple):
        parts = [_plain(one, f"{name}.{index}", tensors) for index, one in enumerate(tree)]
        return {"tuple": parts} if isinstance(tree, tuple) else parts
    raise UserError(
        f"a checkpoint cannot hold {name}: it is of type {type(tree).__name__}; the state of an "
        "optimiser may have "
        "dense tensors, numbers, texts, lists, tuples and dictionaries"
    )
