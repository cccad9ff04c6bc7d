from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from cudt.config import recipe as recipes
from cudt.config.tasks import Alpaca as AlpacaSection
from cudt.reproduce import generated
from cudt.tasks import alpaca
from cudt.tasks.base import SPLITS


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_is_made_is_what_the_recipe_reads(tmp_path):
    generated.make(tmp_path)
    settings = recipes.load("smoke-llama").settings
    assert isinstance(settings.task, AlpacaSection)
    task = alpaca.build(settings.task, tmp_path, settings.model.tokenizer_source)
    with warnings.catch_warnings():
        # None is cut: every response is there to its end.
        warnings.filterwarnings("error", ".* cut")
        assert [len(task.examples(split)) for split in SPLITS] == [24, 8, 8]


def test_what_is_there_is_kept_and_made_elsewhere_is_the_same(tmp_path):
    generated.make(tmp_path / "one")
    first = contents(tmp_path / "one")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*")}
    generated.make(tmp_path / "one")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*")} == times
    generated.make(tmp_path / "other")
    assert contents(tmp_path / "other") == first


def test_a_model_that_could_not_be_saved_whole_is_not_there(tmp_path, monkeypatch):
    def fails() -> None:
        raise OSError("no space")

    monkeypatch.setattr(generated, "_tokenizer", fails)
    with pytest.raises(OSError, match="no space"):
        generated.make(tmp_path)
    assert not generated.exists(tmp_path)
    assert not list((tmp_path / "models").iterdir())
