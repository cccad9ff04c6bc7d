"""Python code and pickles in the folders of pretrained models: never run, unless the recipe says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from cudt.config import recipe as recipes
from cudt.config.pretrained import PretrainedName
from cudt.data import hub
from cudt.tasks.base import build_task
from cudt.utils.errors import DataWarning, UserError
from tests import texts
from tests.pretrained import tiny_pretrained

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
#: The classes of a model, and a file that is written when they are imported.
_CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.models.vit.image_processing_vit import ViTImageProcessor

Path({ran!r}).write_text("ran")

class OwnConfig(BertConfig):
    model_type = "own-bert"

class OwnModel(BertModel):
    config_class = OwnConfig

class OwnTokenizer(PreTrainedTokenizerFast):
    pass

class OwnProcessor(ViTImageProcessor):
    pass
"""


def _change(file: Path, **values: object) -> None:
    known = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**known, **values}))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that exists if code of a model's folder has run."""
    return tmp_path / "ran"


@pytest.fixture
def with_code(tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, a tokenizer and an image processor that need the code in their folder."""
    # transformers copies the code there before it imports it.
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    tiny_pretrained(folder, "bert")
    (folder / "own_code.py").write_text(_CODE.format(ran=str(ran)))
    _change(
        folder / "config.json",
        model_type="own-bert",
        auto_map={"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"},
    )
    _change(
        folder / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": [None, "own_code.OwnTokenizer"]},
    )
    _change(
        folder / "preprocessor_config.json",
        image_processor_type="OwnProcessor",
        auto_map={"AutoImageProcessor": "own_code.OwnProcessor"},
    )
    return folder


LOADERS = {"model": hub.load_encoder, "tokenizer": hub.load_tokenizer, "image processor": hub.load_image_processor}


@pytest.mark.parametrize("kind", LOADERS)
def test_code_of_a_folder_does_not_run_and_one_line_says_how_to_allow_it(with_code, ran, kind, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    with pytest.raises(UserError, match=r"needs own_code\.py to run, from .*model\.trust_remote_code: true") as error:
        LOADERS[kind](str(with_code), None)
    assert "\n" not in str(error.value)
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["model", "tokenizer"])
def test_code_runs_with_a_warning_if_the_recipe_says_so(with_code, ran, kind):
    with pytest.warns(DataWarning, match=f"Python code from {with_code} can run"):
        loaded = LOADERS[kind](PretrainedName(str(with_code), trusts_code=True), None)
    assert ran.exists()
    assert type(loaded).__name__.startswith("Own")


def test_a_model_that_transformers_knows_is_loaded_without_its_own_code(with_code, ran):
    _change(with_code / "config.json", model_type="bert")
    assert type(hub.load_encoder(str(with_code), None)).__module__.startswith("transformers.")
    assert not ran.exists()


#: Keys for which transformers accepts a name on the hub.
KERNELS = ["attn_implementation", "_attn_implementation"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without code; only its configuration is changed."""
    return Path(tiny_pretrained(tmp_path_factory.mktemp("plain"), "bert"))


@pytest.fixture
def asking(plain, tmp_path) -> Path:
    return shutil.copytree(plain, tmp_path / "asking")


@pytest.mark.parametrize("key", KERNELS)
@pytest.mark.parametrize("below", [lambda name: name, lambda name: {"": name}, lambda name: [{"a": [name]}]])
def test_a_configuration_cannot_ask_for_code_from_the_hub(asking, key, below):
    _change(asking / "config.json", inner={key: below("somebody/attention")})
    with pytest.raises(UserError, match=f"sets {key} to 'somebody/attention', code that transformers would download"):
        hub.load_encoder(str(asking), None)


@pytest.mark.parametrize("is_cached", [True, False])
def test_neither_can_that_of_a_model_on_the_hub(asking, is_cached, monkeypatch):
    _change(asking / "config.json", attn_implementation={"": "somebody/attention"})
    file = str(asking / "config.json")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: file if is_cached else None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: file)
    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    with pytest.raises(UserError, match=r"model 'owner/model': .* sets attn_implementation to 'somebody/attention'"):
        hub.load_encoder("owner/model", None)


class _Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_pickle_in_the_weights_does_not_run_and_the_error_is_one_line(tmp_path, ran):
    tiny_pretrained(tmp_path / "model", "bert")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({"embeddings.word_embeddings.weight": _Malicious(ran)}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be loaded from") as error:
        hub.load_encoder(str(tmp_path / "model"), None)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert not ran.exists()


# ---------------------------------------------------------------- recipes


def test_the_permission_is_a_key_of_the_recipe_that_reaches_the_tasks_tokenizer(with_code, ran, tmp_path):
    texts.write_reviews(tmp_path)
    file = texts.write_recipe(tmp_path, str(with_code))
    refused = recipes.load(str(file)).settings
    assert refused.model.tokenizer_source == str(with_code)
    with pytest.raises(UserError, match=r"own_code\.py"):
        build_task(refused.task, tmp_path, refused.model.tokenizer_source)
    allowed = recipes.load(str(file), ["model.trust_remote_code=true"]).settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        build_task(allowed.task, tmp_path, allowed.model.tokenizer_source)
    assert ran.exists()


@pytest.mark.parametrize("word", ["yes", 1, "true"])
def test_the_permission_is_true_and_nothing_similar(word):
    values = {"task": {"name": "imdb"}, "model": {"name": "encoder", "pretrained": "a/b", "trust_remote_code": word}}
    with pytest.raises(UserError, match=r"model\.trust_remote_code: expected true or false"):
        recipes.validate(values, "recipe")


@pytest.mark.soak
def test_y_on_standard_input_changes_nothing(with_code, ran, tmp_path):
    texts.write_reviews(tmp_path)
    recipe = texts.write_recipe(tmp_path, str(with_code))
    command = [sys.executable, "-m", "cudt", "train", "--recipe", str(recipe), "--data-root", str(tmp_path)]
    done = subprocess.run(command, input="y\n" * 20, capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "needs own_code.py" in done.stderr
    assert not ran.exists()
