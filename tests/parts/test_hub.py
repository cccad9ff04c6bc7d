"""Pretrained models by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from cudt.config.models import PretrainedName
from cudt.data import hub
from cudt.utils.errors import UserError
from tests.pretrained import tiny_pretrained


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(tiny_pretrained(tmp_path / "models" / "owner" / "tiny"))


def error_of(name: str, root: Path | None = None) -> str:
    """The error, which is always one line."""
    with pytest.raises(UserError) as error:
        hub.load_model("AutoModel", name, root)
    assert "\n" not in str(error.value)
    return str(error.value)


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_model_is_found_as_a_path_below_the_data_root_and_in_a_package(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "some_weights").mkdir()
    (tmp_path / "some_weights" / "__init__.py").touch()
    tiny_pretrained(tmp_path / "some_weights" / "model")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (str(folder), "owner/tiny", "package:some_weights/model"):
        model = hub.load_model("AutoModel", name, tmp_path, "eager")
        assert type(model).__name__ == "BertModel"
        assert model.config._attn_implementation == "eager"
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        assert hub.load_tokenizer(name, tmp_path)("good film")["input_ids"][0] == 2
        hub.check(name, tmp_path)
    assert "no Python package 'no_such' is installed" in error_of("package:no_such/model")
    with pytest.raises(UserError, match=r"set model\.pretrained"):
        hub.load_tokenizer(None, None)


def test_a_model_in_the_hubs_cache_is_loaded_without_a_network(tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "cache" / "models--owner--tiny"
    tiny_pretrained(cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for revision in (None, commit):
        name = PretrainedName("owner/tiny", revision=revision)
        hub.check(name, tmp_path)
        assert type(hub.load_model("AutoModel", name, tmp_path)).__name__ == "BertModel"
    # A folder has no versions, so a recipe with a version never reads one.
    tiny_pretrained(tmp_path / "models" / "owner" / "tiny")
    other = PretrainedName("owner/tiny", revision="v2")
    assert "`hf download owner/tiny --revision v2`" in error_of(other, tmp_path)


def test_missing_weights_and_weights_of_another_shape_are_refused(folder):
    """The library would draw them at random, and the model would not be pretrained."""
    weights = load_file(folder / "model.safetensors")
    lost = next(key for key in weights if "layer.1" in key)
    kept = {key: weight for key, weight in weights.items() if key != lost}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"1 weights of BertModel are missing, such as {lost}" in error_of(str(folder))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder / "config.json", vocab_size=300)
    assert "mismatch" in error_of(str(folder))
    (folder / "model.safetensors").write_bytes(b"junk")
    assert error_of(str(folder)).endswith(f"check the files in {folder}")


def test_the_code_in_a_models_folder_is_never_run(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    (folder / "own_code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    classes = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    change(folder / "config.json", auto_map=classes)
    assert type(hub.load_model("AutoModel", str(folder), None)).__module__.startswith(
        "transformers."
    )
    change(folder / "config.json", model_type="own-bert")
    assert "custom code" in error_of(str(folder))
    assert not (tmp_path / "ran").exists()
