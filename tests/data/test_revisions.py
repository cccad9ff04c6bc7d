"""Versions of models and datasets on the hub: the recipe's is loaded, and the commit is
recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cudt.config import recipe as recipes
from cudt.config.models import PretrainedName
from cudt.data import hub
from cudt.data.text import Columns, HubSet
from cudt.utils.errors import UserError
from tests.fake_hub import FakeHub, serving
from tests.pretrained import tiny_pretrained

COLUMNS = Columns(("text",), "label")
#: Loads what each line of its input asks for, and prints the result or the error in one line.
LOADING = """
import json, sys
from cudt.config.models import PretrainedName, PretrainedSection
from cudt.data import hub, records
for line in sys.stdin:
    kind, name, revision = json.loads(line)
    hub.is_reachable.cache_clear()
    try:
        if kind == "model":
            given = PretrainedName(name, revision=revision)
            hub.load_tokenizer(given, None)
            bias = hub.load_encoder(given, None).state_dict()["embeddings.LayerNorm.bias"][0].item()
            found = [bias, hub.commit_of(given, None)]
        else:
            read = records.HubSet(name).at(revision).read("train", records.Columns(("text",), "label"), None)
            found = [read.texts[0][0], read.commit]
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[FakeHub]:
    """A hub with two versions of a model, whose biases are 1 and 2, and of a dataset, whose texts
    are old and new."""
    folder = Path(tiny_pretrained(tmp_path_factory.mktemp("served")))
    weights = load_file(folder / "model.safetensors")
    with serving() as hub:
        for number, word in ((1, "old"), (2, "new")):
            weights["embeddings.LayerNorm.bias"] = torch.full((16,), float(number))
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
            hub.add("owner/tiny", folder)
            files = {"train.csv": f"text,label\n{word},1\n".encode(), "README.md": b"# Films\n"}
            hub.add("owner/films", files, "dataset")
        for repository in hub.repositories.values():
            repository.refs["v1"] = next(iter(repository.commits))
        yield hub


@pytest.fixture
def load(served, tmp_path) -> Iterator[Any]:
    """Loads in a process of its own, because the hub's libraries read their settings when they are
    imported."""
    pipe, environment = subprocess.PIPE, served.environment(tmp_path / "home")
    command = [sys.executable, "-c", LOADING]
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=tmp_path
    ) as process:
        asking, answering = process.stdin, process.stdout
        assert asking is not None
        assert answering is not None

        def load(kind: str, name: str, revision: str | None) -> Any:
            print(json.dumps([kind, name, revision]), file=asking, flush=True)
            return json.loads(answering.readline())

        yield load
        asking.close()
    served.is_gone = False


def test_a_model_is_loaded_in_the_version_of_the_recipe_and_its_commit_is_known(served, load):
    old, new = served.repositories["model", "owner/tiny"].commits
    assert load("model", "owner/tiny", "v1") == [1.0, old]
    assert load("model", "owner/tiny", None) == [2.0, new]
    assert load("model", "owner/tiny", old) == [1.0, old]
    assert "v9 is not a valid git identifier" in load("model", "owner/tiny", "v9")
    served.is_gone = True
    assert load("model", "owner/tiny", old) == [1.0, old]
    assert load("model", "owner/tiny", "v1") == [1.0, old]
    error = load("model", "owner/tiny", "v2")
    assert error.startswith(
        "UserError: model 'owner/tiny', revision 'v2', is not completely in the hub's cache"
    )
    assert "`hf download owner/tiny --revision v2`" in error


def test_a_dataset_is_read_in_the_version_of_the_recipe_and_no_other_one_from_the_cache(
    served, load
):
    """Without the hub, `datasets` reads the version that it used last, whatever it is asked for."""
    old, new = served.repositories["dataset", "owner/films"].commits
    assert load("data", "owner/films", "v1") == ["old", old]
    assert load("data", "owner/films", new) == ["new", new]
    served.is_gone = True
    assert load("data", "owner/films", None) == ["new", new]
    assert load("data", "owner/films", new) == ["new", new]
    for revision in (old, "v1", "v2"):
        error = load("data", "owner/films", revision)
        assert (
            f"UserError: dataset 'owner/films': revision '{revision}' is not in the cache" in error
        )
    assert "the hub cannot be reached" in load("data", "owner/none", "v1")


# ---------------------------------------------------------------- this machine has no versions


@pytest.mark.parametrize(
    "load", [hub.load_tokenizer, hub.load_encoder, hub.check], ids=lambda load: load.__name__
)
def test_a_version_of_a_folder_is_refused(load, tmp_path):
    folder = tiny_pretrained(tmp_path / "models" / "owner" / "tiny")
    for name in (folder, "owner/tiny"):
        with pytest.raises(
            UserError,
            match=r"model\.revision = 'v1': .* is read from the folder .* has no versions",
        ):
            load(PretrainedName(name, revision="v1"), tmp_path)
    assert hub.commit_of("owner/tiny", tmp_path) is None


def test_a_version_of_files_is_refused(tmp_path):
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "train.csv").write_text("text,label\none,1\n")
    assert len(HubSet("owner/films").read("train", COLUMNS, tmp_path)) == 1
    for name in ("owner/films", str(tmp_path / "films")):
        with pytest.raises(
            UserError, match=r"task\.revision = 'v1': dataset .* is read from .*films"
        ):
            HubSet(name).at("v1").read("train", COLUMNS, tmp_path)


# ---------------------------------------------------------------- recipes

ENCODER = {"name": "encoder", "pretrained": "owner/tiny"}
FILES = {"name": "text", "train": "a.csv", "test": "b.csv", "text": "text", "label": "label"}


def identity(model: dict[str, Any], task: dict[str, Any]) -> str:
    settings = recipes.validate({"model": model, "task": task}, "recipe")
    return recipes.NamedRecipe("own", settings).identity()


def test_a_version_is_part_of_a_runs_identity_and_null_is_not():
    plain = identity(ENCODER, {"name": "imdb"})
    assert identity({**ENCODER, "revision": None}, {"name": "imdb", "revision": None}) == plain
    others = [
        identity({**ENCODER, "revision": "v1"}, {"name": "imdb"}),
        identity({**ENCODER, "revision": "v2"}, {"name": "imdb"}),
        identity(ENCODER, {"name": "imdb", "revision": "v1"}),
    ]
    assert len({plain, *others}) == 4


@pytest.mark.parametrize("revision", ["", "../other", "a b"])
def test_what_cannot_be_a_version_is_refused(revision):
    with pytest.raises(
        UserError, match=r"model\.revision: expected a branch, a tag or the hash of a commit"
    ):
        recipes.validate(
            {"model": {**ENCODER, "revision": revision}, "task": {"name": "imdb"}}, "recipe"
        )


@pytest.mark.parametrize(
    ("model", "task", "message"),
    [
        ({"name": "unrolled"}, {"name": "reviews"}, "set embeddings_from too"),
        (ENCODER, FILES, "set hub too, or remove revision"),
        (
            {"name": "causal", "pretrained": "a/b"},
            {"name": "alpaca", "file": "own.json"},
            "remove revision, or file",
        ),
    ],
)
def test_a_version_of_nothing_on_the_hub_is_refused(model, task, message):
    pinned = (
        ({**model, "revision": "v1"}, task)
        if model["name"] == "unrolled"
        else (model, {**task, "revision": "v1"})
    )
    with pytest.raises(UserError, match=message):
        recipes.validate({"model": pinned[0], "task": pinned[1]}, "recipe")
