"""Pretrained models by name, and texts and labels from files and datasets of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from cudt.config.models import PretrainedName
from cudt.data import hub
from cudt.data.text import Columns, Records, Source, find_files, read_files
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


def test_a_model_is_found_by_path_data_root_and_package(folder, tmp_path, monkeypatch):
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


# ---------------------------------------------------------------- texts


COLUMNS = Columns(("text",), "label")
#: Texts that a reader may take for something else.
TEXTS = ["NA", "null", 'a, "b"\nc', "  0042 ", "größe 🎬\u2028x", "2020-01-01"]
ROWS = pd.DataFrame({"text": TEXTS, "label": ["good", "bad", "good", "bad", "bad", "bad"]})


def write(file: Path, table: pd.DataFrame) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix in (".csv", ".tsv"):
        table.to_csv(file, index=False, sep="\t" if file.suffix == ".tsv" else ",")
    elif file.suffix == ".parquet":
        table.to_parquet(file)
    else:
        table.to_json(file, orient="records", lines=file.suffix == ".jsonl")
    return file


def read(file: Path, content: bytes | str, columns: Columns = COLUMNS) -> Records:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_files([file], columns)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_every_type_of_file_gives_the_texts_as_they_are(suffix, tmp_path):
    found = read_files([write(tmp_path / f"own.{suffix}", ROWS)], COLUMNS)
    assert found.texts == [(text,) for text in TEXTS]
    assert found.labels == ROWS["label"].tolist()


def test_labels_that_are_integers_are_integers_and_others_are_words(tmp_path):
    found = read(tmp_path / "a.csv", "text,label\na,1\nb, -2\nc,01\nd,1.5\ne,yes \n")
    assert found.labels == [1, -2, "01", "1.5", "yes"]
    rows = [{"text": "a", "label": 3}, {"text": "b", "label": True}, {"text": "c", "label": 2.0}]
    assert read(tmp_path / "a.json", json.dumps(rows)).labels == [3, 1, 2]


def test_several_files_are_read_in_order_and_a_pattern_names_them(tmp_path):
    for name in ("b", "a", "c"):
        write(tmp_path / "root" / f"part-{name}.csv", pd.DataFrame({"text": [name], "label": [1]}))
    files = find_files("part-*.csv", tmp_path / "root")
    assert read_files(files, COLUMNS).texts == [("a",), ("b",), ("c",)]
    literal = write(tmp_path / "root" / "x[1].csv", ROWS)
    assert find_files("x[1].csv", tmp_path / "root") == [literal]
    assert find_files(str(literal), None) == [literal]
    with pytest.raises(UserError, match=r"data file 'no\*' does not exist below"):
        find_files("no*", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,b,1\nc,1\n", "Length of header"),
        ("a.csv", b"text,label\ngr\xf6\xdfe,1\n", "'utf-8' codec can't decode byte 0xf6"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n', "cannot be read"),
        ("a.parquet", b"PAR1 cut", "Parquet magic bytes not found"),
        ("a.txt", "a", ": unknown file type; expected one of .csv"),
        ("a.csv", "text,label\na,1\nb,\n", ", row 2: column 'label': '' is no label"),
        ("a.csv", "Text,label\na,1\n", ": no column 'text'; did you mean 'Text'? its columns: T"),
        ("a.json", '[{"text": null, "label": 1}]', ", row 1: column 'text': None is no text"),
    ],
)
def test_a_damaged_or_foreign_file_is_an_error_that_names_it(name, content, message, tmp_path):
    with pytest.raises(UserError) as error:
        read(tmp_path / name, content)
    assert str(error.value).startswith(str(tmp_path / name))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_parquet_files_below_the_data_root_come_before_the_hub(tmp_path):
    for place, known in {
        "films/own": Source("o/films", "own"),
        "more/data": Source("o/more"),
    }.items():
        for part in range(2):
            file = tmp_path / place / f"train-0000{part}-of-00002.parquet"
            write(file, pd.DataFrame({"text": [str(part)], "label": [1]}))
        assert known.read("train", COLUMNS, tmp_path).texts == [("0",), ("1",)]
        known.find("train", tmp_path)
        with pytest.raises(UserError, match=f"hf download {known.repository} --repo-type dataset"):
            known.find("test", tmp_path)


def test_a_dataset_of_the_hub_is_read_in_the_version_of_the_recipe(tmp_path, monkeypatch):
    """Without the hub, `datasets` reads the version that it read last, whatever it is asked for."""
    asked = []
    cached = tmp_path / "0.0.0" / ("a" * 40)
    datasets.Dataset.from_list([{"text": "one", "label": 1}]).save_to_disk(cached)

    def load(*names: Any, **options: Any) -> Any:
        asked.append((names, options))
        return datasets.load_from_disk(cached)

    monkeypatch.setattr(datasets, "load_dataset", load)
    for revision in (None, "a" * 40):
        found = Source("o/films", "plain", revision).read("train", COLUMNS, tmp_path)
        assert (found.texts, found.labels) == ([("one",)], [1])
        assert asked[-1] == (("o/films", "plain"), {"split": "train", "revision": revision})
    with pytest.raises(UserError, match=r"the cache has commit a+, not 'v1'"):
        Source("o/films", "plain", "v1").read("train", COLUMNS, tmp_path)
    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    assert Source("o/films", "plain", "v1").read("train", COLUMNS, tmp_path).texts == [("one",)]
