"""`cudt judge`: what is printed and written, and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cudt.runs.completions import CompletionSet, write_completions
from cudt.runs.find import open_run
from cudt.runs.run import Run
from tests.instructions import train, write_instructions, write_recipe
from tests.pretrained import tiny_llama

ASKED = CompletionSet("ask", 0.5, 0, 6)
WORDS = ["red", "blue", "green"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("instructions")
    write_instructions(folder)
    write_recipe(folder, tiny_llama(folder / "llama", tie_word_embeddings=False, initializer_range=0.5))
    constrained, erm = (train(folder, folder, "training.epochs=1", objective=one) for one in ("constrained", "erm"))
    return constrained, erm


@pytest.fixture
def runs(pair, tmp_path) -> Path:
    """`one`, constrained, and `two`, ERM of the same seed, with completions that differ in the first and last."""
    for name, trained, outputs in zip(("one", "two"), pair, (["red", "blue", ""], ["qqqq", "blue", "x"]), strict=True):
        shutil.copytree(trained.path, tmp_path / name)
        made = [
            {"instruction": f"Say {word}.", "output": output, "generator": name, "dataset": "ask"}
            for word, output in zip(WORDS, outputs, strict=True)
        ]
        write_completions(ASKED.path(tmp_path / name), made)
    return tmp_path


def test_the_means_and_the_win_rate_are_printed(runs, call):
    code, output, error = call("judge", "one", "two", "--by", "two", "--device", "cpu")
    assert (code, error) == (0, "")
    lines = [line.split() for line in output.splitlines()]
    one, two = (open_run(runs / name).read_table("judged") for name in ("one", "two"))
    assert len(one) == len(two) == 3
    likelihood = f"{one['log_likelihood'].mean():.3f}"
    assert ["one", "0.5", likelihood, "0.0%", f"{one['tokens'].mean():.1f}", "1", "3"] in lines
    assert next(line for line in lines if line[:2] == ["two", "(judge)"])[-2:] == ["0", "3"]
    # The first is decided by the likelihood, the second is a tie, and the empty one loses.
    won = (float(one["log_likelihood"][0] > two["log_likelihood"][0]) + 0.5) / 3
    row = next(line for line in lines if line[:3] == ["one", "two", "(judge)"])
    assert row[3:5] == ["0.5", f"{won:.1%}"]
    assert row[-1] == "3"
    assert output.splitlines()[-1] == "judged by tiny-alpaca/two; written to judged.csv in each run folder"
    assert max(map(len, output.splitlines())) <= 80


def test_without_an_erm_run_of_the_same_seed_there_is_no_win_rate(runs, call):
    code, output, _ = call("judge", "one", "--by", "two", "--device", "cpu")
    assert code == 0
    assert "Win rate" not in output
    assert (runs / "one" / "judged.csv").is_file()
    assert not (runs / "two" / "judged.csv").exists()


def test_several_sets_of_instructions_are_told_apart(runs, call):
    write_completions(CompletionSet("more", 0.0, 0, 6).path(runs / "one"), [])
    answers = json.loads(ASKED.path(runs / "one").read_text())
    write_completions(CompletionSet("more", 0.0, 0, 7).path(runs / "one"), answers[:1])
    _, output, _ = call("judge", "one", "--by", "two", "--device", "cpu")
    assert "one, more, 7 tokens" in output
    assert "one, ask, 6 tokens" in output


def test_errors_name_the_folder_and_nothing_is_written(runs, call, copy):
    for arguments, expected in [
        (["one", "--by", "one"], "error: --by 'one': has objective constrained; a judge is a run with objective erm\n"),
        (["one", "gone", "--by", "two"], "error: run folder 'gone' does not exist\n"),
        (["one", "../" + runs.name + "/one", "--by", "two"], "error: a run folder is given twice; give each once\n"),
    ]:
        assert call("judge", *arguments, "--device", "cpu") == (2, "", expected)
    assert "does not generate text" in call("judge", "one", "copy", "--by", "two")[2]
    assert not (runs / "one" / "judged.csv").exists()
