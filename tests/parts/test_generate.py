"""Completions under noise: those of transformers alone, independent of batch and resumption, with
noise on every token.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from cudt.evaluation import generate
from cudt.evaluation.generate import Decoding, NoiseStream, Request, complete
from cudt.models.causal import Causal
from cudt.noise import NoiseSource
from cudt.runs.export import export
from cudt.runs.run import Run, open_run
from cudt.tasks.alpaca import prompt_text
from cudt.training.train import load
from cudt.utils.errors import UserError
from tests.instructions import train, write_instructions, write_recipe
from tests.pretrained import tiny_llama

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


def request(folder: Path, limit: int | None = None, **changes: Any) -> Request:
    how = Decoding(**{"max_new_tokens": TOKENS, **changes})
    return Request(folder / "ask.json", how, limit)


def completions(run: Run, asked: Request) -> list[dict[str, str]]:
    path = generate.generate(run, asked, "cpu", None, lambda batches, total, what: batches)
    assert path.parent == run.path / "extra" / "completions"
    return json.loads(path.read_text(encoding="utf-8"))


def outputs(run: Run, asked: Request) -> list[str]:
    return [completion["output"] for completion in completions(run, asked)]


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
    found = completions(run, request(folder))
    assert [one["output"] for one in found] == expected != untrained
    assert len(set(expected)) > 3
    assert [one["dataset"] for one in found] == ["short", "long", "ask", "ask", "ask"]
    assert found[1]["instruction"] == "Repeat the colour that follows.\n\nblue"
    assert {one["generator"] for one in found} == {"tiny-alpaca-run"}


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_completions_depend_neither_on_the_batch_nor_on_where_a_command_resumes(run, folder, gamma):
    whole = completions(run, request(folder, gamma=gamma))
    assert len(whole) == len(ASKED)
    for size, kept in [(1, 0), (2, 0), (8, 3), (2, 1)]:
        with run.replacing(request(folder, gamma=gamma).file(run)) as file:
            file.write_text(json.dumps(whole[:kept]))
        assert completions(run, request(folder, gamma=gamma, batch_size=size)) == whole
    prompts = [ASKED[0]["instruction"]]
    how = Decoding(gamma, 0, TOKENS, 8)
    assert generate.answer(run, prompts, how, "cpu", None) == [whole[0]["output"]]


def test_noise_is_scaled_by_the_runs_sigma_and_zero_is_none(run, folder, monkeypatch):
    made: list[tuple[NoiseSource, float, list[str]]] = []

    class Recorded(NoiseStream):
        def __init__(self, noise: Any, gamma: float, ids: Any, lengths: Any) -> None:
            made.append((noise, gamma, list(ids)))
            super().__init__(noise, gamma, ids, lengths)

    monkeypatch.setattr(generate, "NoiseStream", Recorded)
    clean = outputs(run, request(folder))
    assert outputs(run, request(folder, gamma=2.0, noise_seed=3)) != clean
    assert outputs(run, request(folder, gamma=0.0, noise_seed=3)) == clean
    noise, gamma, names = next(one for one in made if one[1])
    assert noise == NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, 3)
    assert (gamma, names) == (2.0, [f"{row}" for row in range(len(ASKED))])


@pytest.fixture
def model(run) -> Causal:
    model = load(run, "cpu", None).model
    assert isinstance(model, Causal)
    return model


def looked_up(model: Causal, stream: NoiseStream) -> list[Tensor]:
    """By how much the embeddings of two prompts and their answers differ from the table's."""
    words, seen = model.lm.get_input_embeddings(), []

    def record(module: Any, given: tuple[Tensor], handed_on: Tensor) -> None:
        seen.append(handed_on - words.weight[given[0]])

    name = model.lm.peft_config["default"].base_model_name_or_path
    with stream.noise_on(model), words.register_forward_hook(record):
        complete(model, AutoTokenizer.from_pretrained(name), PROMPTS, 40)
    return seen


def test_noise_is_on_every_token_of_the_prompt_and_of_the_answer_and_on_no_padding(model):
    source = NoiseSource("gaussian", 0.4, 7)
    stream = NoiseStream(source, 0.5, ["x", "y"], [len(prompt) for prompt in PROMPTS])
    prompt, *generated = looked_up(model, stream)
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


# ---------------------------------------------------------------- files


def test_other_instructions_or_a_damaged_file_are_refused_and_nothing_is_lost(
    run, folder, tmp_path
):
    completions(run, request(folder, limit=2))
    file = run.path / request(folder).file(run)
    before = file.read_bytes()
    (tmp_path / "ask.json").write_text(json.dumps([ASKED[0], {"instruction": "Say black."}]))
    with pytest.raises(UserError, match="contains completions of other instructions"):
        completions(run, request(tmp_path))
    assert file.read_bytes() == before
    file.write_bytes(before[:-9])
    with pytest.raises(UserError, match=r"tokens12\.json: damaged .* repeat the command"):
        completions(run, request(folder))
