"""Shared by the scripts that convert ONNX files: the weights that PyTorch exported, and the folder
for transformers.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.files import folder_next_to, make_readable

Array = np.ndarray[Any, Any]
NameOf = Callable[[str], str | None]
"""From a name in the file to the name of a weight; None for what is not a named weight of the
model."""


def read(file: Path) -> tuple[Sequence[Any], dict[str, Array]]:
    """The nodes of the graph in an ONNX file, and the arrays that it stores."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(file).graph
    return graph.node, {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def named_weights(
    nodes: Sequence[Any], stored: Mapping[str, Array], name_of: NameOf
) -> dict[str, Array]:
    """The weights of a model by their names.

    PyTorch exports most weights under their own names. It transposes the matrix of a linear layer,
    which loses its name: the bias that is added to the product tells it.
    """
    found = {name: array for key, array in stored.items() if (name := name_of(key))}
    products: dict[str, Array] = {}
    for node in nodes:
        if node.op_type == "MatMul" and (matrices := nameless(node, stored, name_of)):
            products[node.output[0]] = matrices[0]
        elif node.op_type == "Add":
            matrix = next((products[key] for key in node.input if key in products), None)
            bias = next((name for key in node.input if (name := name_of(key))), "")
            if matrix is not None and bias.endswith(".bias"):
                found[bias.removesuffix("bias") + "weight"] = np.ascontiguousarray(matrix.T)
    return found


def nameless(node: Any, stored: Mapping[str, Array], name_of: NameOf) -> list[Array]:
    """The stored inputs of a node that lost their names."""
    return [stored[key] for key in node.input if key in stored and not name_of(key)]


def save(
    config: Any,
    weights: Mapping[str, Array],
    folder: Path,
    kind: str,
    add: Callable[[Path], Any],
    **options: Any,
) -> None:
    """Save a model, and what `add` writes next to it; an error if weights are missing or unknown.

    The folder is always complete. `kind` names the model in the error, `options` are those of
    `from_pretrained`.
    """
    survive_torchvision_mismatch()
    from transformers import AutoModel

    with tempfile.TemporaryDirectory() as temporary:
        # Loaded by transformers, which knows the names on the hub and its own.
        config.save_pretrained(temporary)
        tensors = {name: torch.tensor(array) for name, array in weights.items()}
        save_file(tensors, Path(temporary) / "model.safetensors", {"format": "pt"})
        model, loading = AutoModel.from_pretrained(temporary, output_loading_info=True, **options)
    if problems := [
        *loading["missing_keys"],
        *loading["unexpected_keys"],
        *loading["mismatched_keys"],
    ]:
        sys.exit(
            f"the weights are not those of a {kind}: {len(problems)} do not fit, such as "
            f"{sorted(problems)[0]}"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_next_to(folder) as complete:
        add(complete)
        model.save_pretrained(complete)
        complete.chmod(0o755)
        for file in complete.iterdir():
            make_readable(file)
        complete.replace(folder)
