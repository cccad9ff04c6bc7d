from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file, save_file

from cudt.data import hub
from cudt.utils.errors import UserError
from tests.fake_hub import FakeHub, serving
from tests.pretrained import tiny_pretrained


@pytest.fixture
def cut_off(monkeypatch):
    """The hub cannot be reached."""
    monkeypatch.setattr(hub, "is_reachable", lambda: False)


def test_a_folder_is_a_model_in_single_precision(tmp_path):
    name = tiny_pretrained(tmp_path / "model")
    model = hub.load_encoder(name, None)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert hub.load_tokenizer(name, None)("good film")["input_ids"][0] == 2


def test_a_hub_name_is_first_searched_below_the_data_root(tmp_path, cut_off):
    tiny_pretrained(tmp_path / "models" / "owner" / "tiny")
    assert type(hub.load_encoder("owner/tiny", tmp_path)).__name__ == "BertModel"


def test_a_folder_inside_an_installed_package_is_found(tmp_path, monkeypatch):
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").touch()
    tiny_pretrained(package / "model")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert type(hub.load_encoder("package:some_weights/model", None)).__name__ == "BertModel"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_implementation_of_attention_is_that_of_the_recipe(tmp_path, attention):
    model = hub.load_encoder(tiny_pretrained(tmp_path, "bert"), None, attention)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("name", ["no_such_weights/model", "no.such/model"])
def test_a_package_that_is_not_installed_is_reported(name):
    with pytest.raises(
        UserError, match=r"no Python package '.*' is installed; `cudt recipes` says what"
    ):
        hub.load_tokenizer(f"package:{name}", None)


def test_an_unreachable_hub_is_reported_in_one_line_with_the_download_command(tmp_path, cut_off):
    with pytest.raises(UserError) as error:
        hub.load_encoder("owner/name", tmp_path)
    folder = tmp_path / "models" / "owner" / "name"
    assert f"hf download owner/name --local-dir {folder}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["no such folder", "a/b/c", "../gone"])
def test_a_name_that_is_neither_a_folder_nor_valid_on_the_hub_is_reported(name):
    with pytest.raises(UserError, match="neither a folder nor a name on the hub"):
        hub.load_encoder(name, None)


def test_incomplete_weights_are_refused(tmp_path):
    """The library would initialise the missing weights at random, and the model would not be
    pretrained."""
    name = tiny_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    lost = next(key for key in weights if "layer.1" in key)
    del weights[lost]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match="1 weights of BertModel are missing"):
        hub.load_encoder(name, None)


def test_weights_of_another_shape_are_refused(tmp_path):
    name = tiny_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))
    with pytest.raises(
        UserError,
        match=r"word_embeddings.weight' has the shape \(62, 16\), and config.json describes",
    ):
        hub.load_encoder(name, None)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_folder_is_reported_in_one_line(name, tmp_path):
    folder = tiny_pretrained(tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(b"junk")
    with pytest.raises(UserError, match=f"cannot be loaded from {folder}") as error:
        hub.load_encoder(folder, None)
    assert "\n" not in str(error.value)


def test_in_offline_mode_the_hub_is_not_asked(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.is_reachable.cache_clear()
    assert hub.is_reachable() is False
    hub.is_reachable.cache_clear()


@pytest.fixture
def served(tmp_path) -> Iterator[FakeHub]:
    """A local server that acts as the hub, with the model `owner/tiny`."""
    tiny_pretrained(tmp_path / "served")
    with serving() as hub:
        hub.add("owner/tiny", tmp_path / "served")
        yield hub


#: Loads tokenizer and encoder once for each line of its input, and prints the result in one line.
LOADING = """
import sys
from cudt.data import hub
for _ in sys.stdin:
    hub.is_reachable.cache_clear()
    try:
        hub.load_tokenizer('owner/tiny', None)
        print(type(hub.load_encoder('owner/tiny', None)).__name__, flush=True)
    except Exception as error:
        print(f'{type(error).__name__}: {error}', flush=True)
"""


def test_a_model_of_the_hub_is_downloaded_once(served, tmp_path):
    """In a process of its own, because the hub's libraries read their settings when they are
    imported."""
    environment = served.environment(tmp_path / "home")
    command, pipe = [sys.executable, "-c", LOADING], subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=tmp_path
    ) as process:
        asking, answering = process.stdin, process.stdout
        assert asking is not None
        assert answering is not None

        def loaded() -> str:
            print(file=asking, flush=True)
            return answering.readline().strip()

        assert loaded() == "BertModel"
        served.is_gone = True
        assert loaded() == "BertModel"
        shutil.rmtree(tmp_path / "home")
        assert "owner/tiny' is neither in " in loaded()
        asking.close()


def test_a_name_can_be_resolved_without_importing_transformers(tmp_path):
    """A missing model is reported before the slow import of transformers."""
    code = (
        "import sys; from cudt.data import hub\n"
        "try: hub.load_encoder('owner/name', None)\n"
        "except Exception as error: print(type(error).__name__, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"HF_HUB_OFFLINE": "1"},
    )
    assert done.stdout.split() == ["UserError", "False"]
