from __future__ import annotations

from pathlib import Path

import pytest

from cudt.reproduce import needs, scale
from cudt.reproduce.scale import Experiment
from tests.reproduce.scales import listed, scale_of


@pytest.fixture(scope="module")
def full() -> dict[str, Experiment]:
    return {experiment.name: experiment for experiment in scale.load("full").experiments}


def test_a_set_of_the_hub_and_a_model_are_reported_with_how_to_get_them(full, tmp_path):
    weights, data = needs.missing(full["text-search · imdb-roberta"], tmp_path)
    assert (
        "run `hf download FacebookAI/roberta-large --local-dir "
        f"{tmp_path}/models/FacebookAI/roberta-large`" in weights
    )
    assert "run `hf download stanfordnlp/imdb --repo-type dataset" in data


def test_a_set_of_videos_is_reported_with_where_it_comes_from(full, tmp_path):
    (data,) = needs.missing(full["depth · ucsd-dust"], tmp_path)
    assert data.startswith(
        f"ucsd train data: no clips in a folder UCSDped2/Train in {tmp_path}/ucsd; "
        "download the archive from http"
    )


def test_what_the_hub_can_give_is_not_missing(full, tmp_path, monkeypatch):
    monkeypatch.setattr("cudt.data.hub.is_reachable", lambda: True)
    assert needs.missing(full["text-search · imdb-roberta"], tmp_path) == []


def test_a_model_in_a_folder_and_files_of_ones_own_are_not_missing(tmp_path):
    folder = tmp_path / "models" / "tiny-llama"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (experiment,) = scale_of(tmp_path, listed("smoke-llama")).experiments
    assert needs.missing(experiment, tmp_path) == []


def test_missing_instructions_affect_only_the_completions(full, tmp_path):
    llama = full["llama · alpaca-llama"]
    (line,) = needs.missing_instructions(llama, tmp_path)
    assert line == (
        f"completions: file {tmp_path}/alpaca_eval/alpaca_eval.json does not exist; `hf download "
        "tatsu-lab/alpaca_eval "
        f"alpaca_eval.json --repo-type dataset --local-dir {tmp_path}/alpaca_eval`"
    )
    (tmp_path / "alpaca_eval").mkdir()
    (tmp_path / "alpaca_eval" / "alpaca_eval.json").write_text("[]")
    assert needs.missing_instructions(llama, tmp_path) == []
    assert needs.missing_instructions(full["depth · ucsd-dust"], Path("nowhere")) == []
