"""scripts/weights.py: models from the nodes and arrays of an ONNX file."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, BertConfig, BertModel, Dinov2Config, Dinov2Model

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2}
BERT = BertConfig(vocab_size=40, hidden_size=16, intermediate_size=32, **SMALL)
DINOV2 = Dinov2Config(hidden_size=128, mlp_ratio=2, image_size=42, **SMALL)


@pytest.fixture
def script(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return importlib.import_module("weights")


def node(kind: str, inputs: list[str], output: str) -> SimpleNamespace:
    return SimpleNamespace(op_type=kind, input=inputs, output=[output])


def saved(model: Any, folder: Path) -> dict[str, Any]:
    """The weights of a random model that was saved."""
    torch.manual_seed(0)
    for weight in model.eval().parameters():
        torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder)
    return {name: one.numpy() for name, one in load_file(folder / "model.safetensors").items()}


def exported(named: dict[str, Any], prefix: str = "") -> tuple[list[Any], dict[str, Any]]:
    """Nodes and stored arrays as PyTorch's exporter makes them: matrices are transposed and lose their names."""
    nodes, stored = [], {"onnx::Slice_1": np.ones(2), "decoder.conv.weight": np.ones((2, 2))}
    for number, (name, array) in enumerate(named.items()):
        if name.startswith("encoder.") and array.ndim == 2:
            stored[f"onnx::MatMul_{number}"] = array.T
            bias = f"{prefix}{name.removesuffix('weight')}bias"
            nodes.append(node("MatMul", ["x", f"onnx::MatMul_{number}"], f"p{number}"))
            nodes.append(node("Add", [bias, f"p{number}"], "y"))
        else:
            stored[f"{prefix}{name}"] = array
    # A product without a bias is no linear layer.
    nodes.append(node("MatMul", ["scores", "values"], "mixed"))
    return [*nodes, node("Add", ["mixed", "residual"], "z")], stored


@torch.no_grad()
def test_a_bert_is_the_one_that_was_exported(script, tmp_path):
    model = BertModel(BERT, add_pooling_layer=False)
    named = saved(model, tmp_path / "original")
    weights = script.named_weights(*exported(named), script.bert_name)
    script.save(BERT, weights, tmp_path / "made", add_pooling_layer=False)
    again = AutoModel.from_pretrained(tmp_path / "made", add_pooling_layer=False).eval()
    tokens = torch.tensor([[2, 30, 39, 38, 3]])
    assert torch.equal(again(tokens).last_hidden_state, model(tokens).last_hidden_state)


@torch.no_grad()
def test_a_dinov2_inside_a_larger_model_is_the_one_that_was_exported(script, tmp_path):
    model = Dinov2Model(DINOV2)
    named = saved(model, tmp_path / "original")
    positions, _ = named.pop("embeddings.position_embeddings"), named.pop("embeddings.mask_token")
    nodes, stored = exported(named, "backbone.")
    stored |= {"onnx::Concat_1": positions[:, :1], "onnx::Reshape_2": positions[:, 1:]}
    nodes.append(node("Reshape", ["onnx::Reshape_2"], "/backbone/embeddings/Reshape_output_0"))
    nodes.append(node("Concat", ["onnx::Concat_1"], "/backbone/embeddings/Concat_output_0"))
    weights = script.dinov2_weights(nodes, stored)
    config = script.dinov2_config(weights)
    script.save(config, weights, tmp_path / "made")
    again = AutoModel.from_pretrained(tmp_path / "made").eval()
    for pictures in (torch.randn(2, 3, 42, 42), torch.randn(1, 3, 28, 56)):
        assert torch.equal(again(pictures).last_hidden_state, model(pictures).last_hidden_state)
