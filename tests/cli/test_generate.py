"""`cudt generate`: one run, two runs, and errors."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cudt.cli import main as cli
from cudt.evaluation import generate
from cudt.evaluation.generate import Decoding, Request
from cudt.runs.run import Run, open_run
from cudt.utils.text import printable
from tests.cli.conftest import contents
from tests.instructions import train, write_instructions, write_recipe
from tests.pretrained import tiny_llama

ASKED = [{"instruction": f"Say {word}."} for word in ("red", "blue", "green")]
CommandLine = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("instructions")
    write_instructions(folder)
    write_recipe(
        folder, tiny_llama(folder / "llama", tie_word_embeddings=False, initializer_range=0.5)
    )
    return folder


@pytest.fixture(scope="module")
def pair(folder, tmp_path_factory) -> tuple[Run, Run]:
    """Two runs with different completions."""
    out = tmp_path_factory.mktemp("outputs")
    settings = (
        ("training.epochs=1", "training.learning_rate=3e-2"),
        ("training.epochs=1", "training.learning_rate=0.3"),
    )
    return train(folder, out, *settings[0]), train(folder, out, *settings[1], objective="erm")


@pytest.fixture
def call(monkeypatch, capsys, pair, tmp_path) -> CommandLine:
    """`cudt generate` on the CPU in a folder with copies of two runs, `one` and `two`, and
    `ask.json`."""
    monkeypatch.chdir(tmp_path)
    for name in ("CUDT_DATA_ROOT", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, trained in zip(("one", "two"), pair, strict=True):
        shutil.copytree(trained.path, tmp_path / name)
    Path("ask.json").write_text(json.dumps(ASKED))

    def run(*arguments: str, asked: str | None = "ask.json") -> tuple[int, str, str]:
        short = [
            "--max-new-tokens",
            "6",
            "--device",
            "cpu",
            *(["--instructions", asked] if asked else []),
        ]
        monkeypatch.setattr(sys, "argv", ["cudt", "generate", *short, *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


def written(run: str, name: str = "ask-gamma0-seed0-tokens6") -> list[dict[str, str]]:
    return json.loads(
        (Path(run) / "extra" / "completions" / f"{name}.json").read_text(encoding="utf-8")
    )


def refused(call: CommandLine, *arguments: str, asked: str | None = "ask.json") -> str:
    code, _, error = call(*arguments, asked=asked)
    assert code == 2
    assert len(error.splitlines()) == 1
    return error.removeprefix("error: ")


# ---------------------------------------------------------------- the command


def test_one_run_writes_its_completions_and_says_where(call):
    code, output, _ = call("one", "--gamma", "0.5", "--noise-seed", "3", "--batch-size", "2")
    assert code == 0
    name = "ask-gamma0.5-seed3-tokens6"
    assert f"completions in one/extra/completions/{name}.json" in output
    assert [one["instruction"] for one in written("one", name)] == [
        row["instruction"] for row in ASKED
    ]
    assert "both runs" not in output


def test_two_runs_are_also_written_into_one_file(call):
    code, output, _ = call("one", "two")
    assert code == 0
    pairs = written("one", "ask-gamma0-seed0-tokens6-against-two")
    assert "both runs in one/extra/completions/ask-gamma0-seed0-tokens6-against-two.json" in output
    for pair, first, second in zip(pairs, written("one"), written("two"), strict=True):
        assert pair == {
            "instruction": first["instruction"],
            "output_1": first["output"],
            "output_2": second["output"],
            "generator_1": "tiny-alpaca-one",
            "generator_2": "tiny-alpaca-two",
            "dataset": "ask",
        }
    assert [first["output"] for first in written("one")] != [
        second["output"] for second in written("two")
    ]


def test_two_runs_are_compared_on_the_limit_though_one_has_answered_more(call):
    assert call("one")[0] == 0
    code, _, error = call("one", "two", "--limit", "2")
    assert (code, error) == (0, "")
    pairs = written("one", "ask-gamma0-seed0-tokens6-against-two")
    assert [pair["instruction"] for pair in pairs] == ["Say red.", "Say blue."]
    assert len(written("one")) == 3


# ---------------------------------------------------------------- prompts


def ask(call: CommandLine, *arguments: str) -> str:
    """What is printed; the run folders stay as they are."""
    before = {name: contents(Path(name)) for name in ("one", "two")}
    code, output, error = call(*arguments, asked=None)
    assert code == 0, error
    assert {name: contents(Path(name)) for name in ("one", "two")} == before
    return output


@pytest.mark.parametrize("gamma", ["0", "1"])
def test_the_completion_of_a_prompt_is_that_of_the_same_instruction_in_a_file(call, gamma):
    output = ask(call, "one", "--gamma", gamma, "--prompt", "Say red.")
    assert call("one", "--gamma", gamma)[0] == 0
    assert (
        output == printable(written("one", f"ask-gamma{gamma}-seed0-tokens6")[0]["output"]) + "\n"
    )


def test_a_prompt_can_come_from_standard_input(call, monkeypatch):
    expected = ask(call, "one", "--prompt", "Say red.\nAnd blue.")
    monkeypatch.setattr("sys.stdin", io.StringIO("Say red.\nAnd blue."))
    assert ask(call, "one", "--prompt", "-") == expected


def test_prompts_with_weights_that_are_not_the_runs_own_measure_their_noise_and_record_nothing(
    folder, tmp_path
):
    """All weights are trained, so that those of the last epoch have a σ_x of their own."""
    settings = ("training.epochs=2", "training.learning_rate=3e-2", "model.lora=null")
    run = open_run(train(folder, tmp_path, *settings).path, "last")
    asked = Decoding(1.0, 0, 6, 8)
    before = contents(run.path)
    outputs = generate.answer(run, [row["instruction"] for row in ASKED], asked, "cpu", folder)
    assert contents(run.path) == before
    (tmp_path / "ask.json").write_text(json.dumps(ASKED))
    path = generate.generate(
        run, Request(tmp_path / "ask.json", asked), "cpu", folder, lambda rows, *_: rows
    )
    assert [one["output"] for one in json.loads(path.read_text(encoding="utf-8"))] == outputs


def test_a_prompt_or_a_file_is_given_and_not_both(call):
    expected = "give either --instructions FILE or --prompt TEXT\n"
    assert refused(call, "one", asked=None) == expected
    assert refused(call, "one", "--prompt", "Say red.") == expected
    assert (
        refused(call, "one", "--prompt", "a", "--limit", "1", asked=None)
        == "--limit: for --instructions only\n"
    )
