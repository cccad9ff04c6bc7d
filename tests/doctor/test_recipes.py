from __future__ import annotations

import pytest

from cudt.config import recipe as recipes
from cudt.data import hub
from cudt.doctor import data_sets
from cudt.doctor import recipes as check
from tests.doctor.conftest import ON_CPU, ON_GPU, found, scope
from tests.texts import write_reviews


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    monkeypatch.chdir(tmp_path)


def test_every_recipe_is_ready_or_misses_something():
    listed = found(check.CHECK, scope())
    assert {one.severity for one in listed} == {"ok", "note"}
    said = "\n".join(one.title for one in listed)
    assert all(name in said for name in recipes.names())
    assert listed[-1].title == "ready: reviews-ut, shapes-dust, smoke-text, smoke-video"


def test_what_several_recipes_miss_is_said_once_in_a_short_line():
    listed = found(check.CHECK, scope())
    assert all(len(one.title) < 130 and not one.advice for one in listed)
    (avenue,) = (one for one in listed if "dataset Avenue" in one.title)
    assert avenue.title == "avenue-dust, avenue-dust-9, avenue-ut, avenue-vit: dataset Avenue is missing"
    imdb = [one.title for one in listed if "'stanfordnlp/imdb'" in one.title]
    assert [title.partition(": ")[2] for title in imdb] == ["dataset 'stanfordnlp/imdb' is missing"] * 2
    assert imdb[0].startswith("imdb-bert, imdb-distilbert, ")
    assert not imdb[1].startswith("imdb-bert")
    assert listed[-2].title == "how to get them: `cudt recipes` for models, `cudt data` for data sets"


@pytest.mark.parametrize(
    ("base", "start", "part"),
    [
        ("avenue-dust", "mine.yaml: dataset Avenue: no folder", "download the archive from http"),
        ("alpaca-smollm", "mine.yaml: model 'HuggingFaceTB/SmolLM2-135M-Instruct' is neither", "hf download"),
        ("alpaca-smollm", "mine.yaml: model 'HuggingFaceTB/SmolLM2-135M-Instruct' is neither", "make smollm"),
        ("smoke-llama", "mine.yaml: model 'tiny-llama' is neither", "the recipe needs files that `cudt reproduce"),
    ],
)
def test_of_a_recipe_that_was_named_it_says_how_to_get_what_is_missing(tmp_path, base, start, part):
    recipe = (recipes.locate(base)).read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(recipe, encoding="utf-8")
    (one,) = (one for one in found(check.CHECK, scope(recipes=["mine.yaml"])) if one.title.startswith(start))
    assert (one.severity, part in one.advice, "hf download tiny" in one.advice) == ("problem", True, False)


def test_recipes_for_a_gpu_are_ready_on_one_and_a_note_without(monkeypatch):
    monkeypatch.setattr(check, "_missing", lambda recipe, root: [])
    assert [one.severity for one in found(check.CHECK, scope(torch=ON_GPU))] == ["ok"]
    slow, ready = found(check.CHECK, scope(torch=ON_CPU))
    assert (slow.severity, "avenue-dust" in slow.title, "avenue-dust" in ready.title) == ("note", True, False)


def test_a_recipe_that_was_named_and_cannot_be_trained_is_a_problem(tmp_path):
    (tmp_path / "mine.yaml").write_text("task: {name: imdb}\nmodel: {name: unrolled, layer: 3}\n", encoding="utf-8")
    (one,) = (one for one in found(check.CHECK, scope(recipes=["mine.yaml"])) if one.severity == "problem")
    assert "model.layer: unknown key" in one.title


def test_a_recipe_with_flash_attention_needs_its_package(tmp_path):
    text = "base: imdb-distilbert\nmodel: {attention: flash_attention_2}\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    titles = [one.title for one in found(check.CHECK, scope(recipes=["mine.yaml"])) if one.severity == "problem"]
    assert "mine.yaml: the package flash-attn is not installed" in titles


def test_pretrained_weights_that_do_not_fit_into_memory_are_missing_memory(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "models" / "distilbert" / "distilbert-base-uncased"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(2**30)
    (tmp_path / "data" / "imdb" / "plain_text").mkdir(parents=True)
    write_reviews(tmp_path / "data" / "imdb" / "plain_text")

    def lines(memory: int) -> list[str]:
        monkeypatch.setattr(check, "free_memory", lambda: (memory, memory))
        listed = found(check.CHECK, scope(data_root=tmp_path / "data"))
        return [one.title for one in listed if "memory" in one.title]

    (line,) = lines(3 * 2**30)
    assert line == (
        "imdb-distilbert, mnli-distilbert: memory: training 'distilbert/distilbert-base-uncased' takes more than 4 GB, "
        "and 3 GB are free"
    )
    assert lines(5 * 2**30) == []


def test_the_data_root_and_the_data_sets_in_it(tmp_path, monkeypatch):
    assert found(data_sets.CHECK, scope(data_root=tmp_path / "gone"))[0].severity == "problem"
    (tmp_path / "avenue" / "training_videos").mkdir(parents=True)
    partial, absent, _ = found(data_sets.CHECK, scope(data_root=tmp_path))
    assert (partial.severity, partial.title) == ("warning", f"Avenue is incomplete in {tmp_path / 'avenue'}")
    assert absent.severity == "note"
    assert "ShanghaiTech" in absent.title


@pytest.mark.parametrize(("offline", "reachable", "severity"), [(True, False, "note"), (False, True, "ok")])
def test_the_hub(monkeypatch, tmp_path, offline, reachable, severity):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(hub, "is_reachable", lambda: reachable)
    assert found(data_sets.CHECK, scope(data_root=tmp_path))[-1].severity == severity
