"""Completions under noise: those of transformers alone, whatever the batch, with noise on every token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from cudt.evaluation import generate
from cudt.evaluation.generate import Decoding, NoiseStream, complete, file_of
from cudt.noise import NoiseSource
from cudt.runs.export import export
from cudt.runs.run import Run, open_run
from cudt.tasks.alpaca import prompt_text
from cudt.training.train import load
from cudt.utils.errors import UserError
from tests.pretrained import tiny_llama
from tests.texts import train, write_instructions, write_recipe

#: Of several lengths, so that a batch of them is padded.
ASKED = [
    {"instruction": "Say red.", "dataset": "short"},
    {"instruction": "Repeat the colour that follows.", "input": "blue", "dataset": "long"},
    {"instruction": "Say white."},
    {"instruction": "Name all the colours that you know, and no other word.", "input": " "},
    {"instruction": "Say é 漢."},
]
TOKENS = 12
PROMPTS = [[0, *range(40, 70)], [0, *range(90, 100)]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Instructions to train on, a tiny Llama and a recipe for them, and instructions to answer."""
    folder = tmp_path_factory.mktemp("instructions")
    write_instructions(folder)
    # Untied and with large weights, so that it does not say one letter over and over.
    write_recipe(
        folder, tiny_llama(folder / "llama", tie_word_embeddings=False, initializer_range=0.5)
    )
    (folder / "ask.json").write_text(json.dumps(ASKED), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> Run:
    changes = ("training.epochs=1", "training.learning_rate=3e-2")
    return train(folder, tmp_path_factory.mktemp("outputs"), *changes)


@pytest.fixture
def run(trained, tmp_path) -> Run:
    return open_run(Path(shutil.copytree(trained.path, tmp_path / "run")))


def completions(
    run: Run, folder: Path, limit: int | None = None, **changes: Any
) -> list[dict[str, str]]:
    how = Decoding(**{"max_new_tokens": TOKENS, **changes})
    file = folder / "ask.json"
    path = generate.generate(run, file, how, "cpu", None, lambda batches, *_: batches, limit)
    assert path == run.path / file_of(run, file, how)
    return json.loads(path.read_text(encoding="utf-8"))


def outputs(run: Run, folder: Path, **changes: Any) -> list[str]:
    return [completion["output"] for completion in completions(run, folder, **changes)]


def test_completions_are_those_of_transformers_and_peft_alone(run, folder, tmp_path):
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(folder / "llama", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "llama")

    def answers(model: Any) -> list[str]:
        """One prompt at a time, without padding."""
        found = []
        for row in ASKED:
            text = prompt_text(row["instruction"], row.get("input", ""))
            prompt = tokenizer(text, return_tensors="pt")
            tokens = {name: prompt[name] for name in ("input_ids", "attention_mask")}
            how = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 1}
            written = model.generate(**tokens, **how)[0, tokens["input_ids"].shape[1] :]
            found.append(tokenizer.decode(written, skip_special_tokens=True).strip())
        return found

    untrained = answers(base)
    export(run, load(run, "cpu", None), tmp_path / "model")
    expected = answers(PeftModel.from_pretrained(base, str(tmp_path / "model")).eval())
    found = completions(run, folder)
    assert [one["output"] for one in found] == expected != untrained
    assert len(set(expected)) > 3
    assert [one["dataset"] for one in found] == ["short", "long", "ask", "ask", "ask"]
    assert found[1]["instruction"] == "Repeat the colour that follows.\n\nblue"
    assert {one["generator"] for one in found} == {"tiny-alpaca-run"}


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_completions_depend_neither_on_the_batch_nor_on_where_a_command_resumes(run, folder, gamma):
    whole = completions(run, folder, gamma=gamma)
    assert len(whole) == len(ASKED)
    prompts, how = [ASKED[0]["instruction"]], Decoding(gamma, 0, TOKENS, 8)
    for size, kept in [(1, 0), (2, 0), (8, 3), (2, 1)]:
        with run.replacing(file_of(run, folder / "ask.json", how)) as file:
            file.write_text(json.dumps(whole[:kept]))
        assert completions(run, folder, gamma=gamma, batch_size=size) == whole
    assert generate.answer(run, prompts, how, "cpu", None) == [whole[0]["output"]]


def test_noise_is_scaled_by_the_runs_sigma_and_zero_is_none(run, folder, monkeypatch):
    made = Mock(side_effect=NoiseStream)
    monkeypatch.setattr(generate, "NoiseStream", made)
    clean = outputs(run, folder)
    assert outputs(run, folder, gamma=2.0, noise_seed=3) != clean
    assert outputs(run, folder, gamma=0.0, noise_seed=3) == clean
    noise = NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, 3)
    expected = (noise, 2.0, [*map(str, range(len(ASKED)))])
    assert expected in [call.args[:3] for call in made.call_args_list]


def test_noise_is_on_every_token_of_the_prompt_and_of_the_answer_and_on_no_padding(run, folder):
    model: Any = load(run, "cpu", None).model
    words, seen = model.lm.get_input_embeddings(), list[Tensor]()

    def record(module: Any, given: tuple[Tensor], handed_on: Tensor) -> None:
        seen.append(handed_on - words.weight[given[0]])

    source = NoiseSource("gaussian", 0.4, 7)
    stream = NoiseStream(source, 0.5, ["x", "y"], [len(prompt) for prompt in PROMPTS])
    with stream.noise_on(model), words.register_forward_hook(record):
        complete(model, AutoTokenizer.from_pretrained(folder / "llama"), PROMPTS, 40)
    prompt, *generated = seen
    padding = torch.tensor([[False] * 31, [True] * 20 + [False] * 11])
    assert prompt[padding].abs().max() == 0
    assert (prompt[~padding].abs() > 0).all(1).all()
    assert len(generated) > 5
    written = torch.cat(generated, 1)
    for values in (prompt[~padding], written):
        assert values.std().item() == pytest.approx(0.5 * 0.4, rel=0.1)
        assert abs(values.mean().item()) < 4 * 0.2 / values.numel() ** 0.5
    # No two tokens share a draw.
    rows = torch.cat([prompt[~padding], written.flatten(0, 1)])
    assert len(rows.unique(dim=0)) == len(rows)


def test_other_instructions_or_a_damaged_file_are_refused(run, folder, tmp_path):
    completions(run, folder, limit=2)
    (file,) = (run.path / "extra" / "completions").iterdir()
    before = file.read_bytes()
    (tmp_path / "ask.json").write_text(json.dumps([ASKED[0], {"instruction": "Say black."}]))
    with pytest.raises(UserError, match="contains completions of other instructions"):
        completions(run, tmp_path)
    assert file.read_bytes() == before
    file.write_bytes(before[:-9])
    with pytest.raises(UserError, match=r"tokens12\.json: damaged .* repeat the command"):
        completions(run, folder)
