from __future__ import annotations

import json
import math
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cudt.data import hub
from cudt.utils.errors import UserError
from tests.pretrained import tiny_pretrained

EMBEDDINGS = "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tiny_pretrained(tmp_path_factory.mktemp("original"), num_hidden_layers=1))


@pytest.fixture
def model(original, tmp_path) -> Path:
    """A folder of a pretrained model that a test may damage."""
    return shutil.copytree(original, tmp_path / "model")


def error_of(model: Path, load: Callable[..., Any] = hub.load_encoder) -> str:
    """The error, which is one line and comes at once."""
    started = time.process_time()
    with pytest.raises(UserError) as error:
        load(str(model), None)
    assert time.process_time() - started < 2
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def configure(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


def change_weights(model: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_with_their_name(value, model):
    change_weights(model, lambda weights: weights[EMBEDDINGS][3, 4].fill_(value))
    assert error_of(model) == (
        f"model '{model}': weight '{EMBEDDINGS}' has NaN or infinite values; download the file again"
    )


def test_a_missing_weight_is_reported_with_its_name(model):
    change_weights(model, lambda weights: weights.pop(EMBEDDINGS))
    assert f"1 weights of BertModel are missing, such as {EMBEDDINGS}" in error_of(model)


def test_a_weight_of_another_shape_is_reported_with_both(model):
    configure(model, vocab_size=300)
    assert error_of(model).startswith(
        f"model '{model}': weight '{EMBEDDINGS}' has the shape (62, 16), and config.json describes (300, 16); use"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 10**7},
        {"vocab_size": 10**12},
        {"max_position_embeddings": 10**12},
        {"type_vocab_size": 10**9},
        {"hidden_size": 2**20},
        {"intermediate_size": 2**40},
    ],
)
def test_a_configuration_of_a_much_larger_model_is_refused_before_it_takes_memory(changes, model):
    configure(model, **changes)
    assert error_of(model).startswith(f"{model / 'config.json'}: describes a model of ")


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads"])
def test_a_configuration_of_many_parts_is_refused_before_they_are_built(key, model):
    configure(model, **{key: 10**9})
    assert error_of(model) == (
        f"{model / 'config.json'}: {key} = 1000000000, but its files have 23 weights; use the configuration and the "
        "weights of one model"
    )


@pytest.mark.parametrize("is_zip", [True, False])
def test_weights_in_a_pickle_are_counted_as_well(is_zip, model, tmp_path):
    """At least so many parts as it has weights are possible; no pickle is loaded to count them."""
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    unused = {f"unused.{n}": torch.zeros(1) for n in range(150)}
    torch.save({**weights, **unused}, model / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    configure(model, num_experts=150)
    assert torch.equal(hub.load_encoder(str(model), None).get_input_embeddings().weight, weights[EMBEDDINGS])
    configure(model, num_hidden_layers=10**9)
    assert f"{model / 'config.json'}: num_hidden_layers = 1000000000, but its files have " in error_of(model)


def test_a_recipe_can_choose_another_attention_than_the_configuration(model):
    configure(model, attn_implementation="flash_attention_2")
    assert hub.load_encoder(str(model), None, "eager").config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("name", "content", "load"),
    [
        ("config.json", b"", hub.load_encoder),
        ("config.json", b"[]", hub.load_encoder),
        ("config.json", b"[" * 100_000, hub.load_encoder),
        ("tokenizer.json", b'{"version": ', hub.load_tokenizer),
        ("tokenizer.json", b"\xff", hub.load_tokenizer),
        ("tokenizer_config.json", b"junk", hub.load_tokenizer),
        ("model.safetensors", b"", hub.load_encoder),
        ("model.safetensors", struct.pack("<Q", 2**63) + b"{}", hub.load_encoder),
        ("model.safetensors", struct.pack("<Q", 10**8) + b"{}", hub.load_encoder),
        ("model.safetensors", struct.pack("<Q", 2) + b"[]", hub.load_encoder),
    ],
)
def test_a_damaged_file_is_reported_with_its_name(name, content, load, model):
    (model / name).write_bytes(content)
    assert f"{model / name}: " in error_of(model, load)


class PanicException(BaseException):
    pass


def test_a_panic_of_a_tokenizer_is_an_error_in_one_line(model, monkeypatch):
    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", panic)
    assert error_of(model, hub.load_tokenizer).endswith(f"{model}: called `Option::unwrap()` on a `None` value")


def test_a_stop_while_a_model_is_loaded_is_no_error_of_its_files(model, monkeypatch):
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", stop)
    with pytest.raises(KeyboardInterrupt):
        hub.load_tokenizer(str(model), None)
