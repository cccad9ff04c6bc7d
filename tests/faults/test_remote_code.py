"""Python code in the folder of a pretrained model is never run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cudt.data import hub
from cudt.utils.errors import UserError
from tests.pretrained import tiny_pretrained


@pytest.fixture
def with_code(tmp_path: Path) -> Path:
    """A model that names the code in its folder, which writes a file when it is imported."""
    folder = Path(tiny_pretrained(tmp_path / "model", "bert"))
    (folder / "own_code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_that_needs_its_own_code_is_refused_in_one_line(with_code, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    config = json.loads((with_code / "config.json").read_text())
    (with_code / "config.json").write_text(json.dumps({**config, "model_type": "own-bert"}))
    with pytest.raises(UserError, match=r"cannot be loaded from .*model \(.*custom code") as error:
        hub.load_encoder(str(with_code), None)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


def test_a_model_that_transformers_knows_is_loaded_without_its_own_code(with_code, tmp_path):
    assert type(hub.load_encoder(str(with_code), None)).__module__.startswith("transformers.")
    assert not (tmp_path / "ran").exists()
