from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from cudt.evaluation import generate
from cudt.evaluation.generate import NoiseStream, Request, complete
from cudt.models.causal_network import Causal
from cudt.noise import NoiseSource
from cudt.runs.completions import write_completions
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.tasks.prompts import prompt_text
from cudt.training import train as training
from tests.instructions import train, write_instructions, write_recipe
from tests.pretrained import tiny_llama

CPU = torch.device("cpu")
#: Of several lengths, so that a batch of them is padded.
ASKED = [
    {"instruction": "Say red.", "dataset": "short"},
    {"instruction": "Repeat the colour that follows.", "input": "blue", "dataset": "long"},
    {"instruction": "Say white."},
    {"instruction": "Name all the colours that you know, and no other word.", "input": " "},
    {"instruction": "Say é 漢."},
]
TOKENS = 12


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
    return train(
        folder,
        tmp_path_factory.mktemp("outputs"),
        "training.epochs=1",
        "training.learning_rate=3e-2",
    )


@pytest.fixture
def run(trained, tmp_path) -> Run:
    """A copy of a finished run."""
    shutil.copytree(trained.path, tmp_path / "run")
    return open_run(tmp_path / "run")


def request(folder: Path, **changes: Any) -> Request:
    return Request(folder / "ask.json", **{"max_new_tokens": TOKENS, **changes})


def completions(run: Run, asked: Request) -> list[dict[str, str]]:
    path = generate.generate(run, asked, "cpu", None, lambda batches, total, what: batches)
    assert path.parent == run.path / "completions"
    return json.loads(path.read_text(encoding="utf-8"))


def outputs(run: Run, asked: Request) -> list[str]:
    return [completion["output"] for completion in completions(run, asked)]


# ---------------------------------------------------------------- without noise


def test_completions_are_those_of_transformers_and_peft_alone(run, folder):
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(folder / "llama", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "llama")

    def answers(model: Any) -> list[str]:
        """One prompt at a time, without padding."""
        found = []
        for row in ASKED:
            prompt = tokenizer(
                prompt_text(row["instruction"], row.get("input", "")), return_tensors="pt"
            )
            tokens = {name: prompt[name] for name in ("input_ids", "attention_mask")}
            written = model.generate(
                **tokens, max_new_tokens=TOKENS, do_sample=False, pad_token_id=1
            )
            text = tokenizer.decode(
                written[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True
            )
            found.append(text.strip())
        return found

    untrained = answers(base)
    expected = answers(PeftModel.from_pretrained(base, str(run.path / "model")).eval())
    assert outputs(run, request(folder)) == expected != untrained
    assert len(set(expected)) > 3


# ---------------------------------------------------------------- batches and resumption


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_completions_do_not_depend_on_the_batch_nor_on_where_a_command_went_on(run, folder, gamma):
    whole = completions(run, request(folder, gamma=gamma))
    assert len(whole) == len(ASKED)
    path = run.path / "completions" / f"{request(folder, gamma=gamma).name}.json"
    for size, kept in [(1, 0), (2, 0), (8, 3), (2, 1), (8, 5)]:
        write_completions(path, whole[:kept])
        assert completions(run, request(folder, gamma=gamma, batch_size=size)) == whole


# ---------------------------------------------------------------- noise


@pytest.fixture
def model(run) -> Causal:
    model = training.load(run, "cpu", None).model
    assert isinstance(model, Causal)
    return model


PROMPTS = [[0, *range(40, 70)], [0, *range(90, 100)]]


def looked_up(
    model: Causal, stream: Callable[[Tensor], Tensor] | None
) -> list[tuple[Tensor, Tensor]]:
    """While two prompts are answered: tokens that are looked up, and by how much what is handed on
    differs."""
    words, seen = model.lm.get_input_embeddings(), []

    def record(module: Any, given: tuple[Tensor], handed_on: Tensor) -> None:
        seen.append((given[0], handed_on - words.weight[given[0]]))

    hook = words.register_forward_hook(record)
    tokenizer = AutoTokenizer.from_pretrained(
        model.lm.peft_config["default"].base_model_name_or_path
    )
    try:
        if stream is None:
            complete(model, tokenizer, PROMPTS, 40)
        else:
            with model.replacing(stream):
                complete(model, tokenizer, PROMPTS, 40)
    finally:
        hook.remove()
    return seen


def stream(gamma: float = 0.5, seed: int = 7) -> NoiseStream:
    return NoiseStream(
        NoiseSource("gaussian", 0.4, seed), gamma, ["x", "y"], [len(prompt) for prompt in PROMPTS]
    )


def test_noise_is_on_every_token_of_the_prompt_and_of_the_answer_and_on_no_padding(model):
    (tokens, prompt), *generated = looked_up(model, stream())
    assert tokens.shape == (2, 31)
    padding = torch.tensor([[False] * 31, [True] * 20 + [False] * 11])
    assert prompt[padding].abs().max() == 0
    assert (prompt[~padding].abs() > 0).all(1).all()
    assert len(generated) > 5
    written = torch.cat([noise for _, noise in generated], 1)
    assert written.shape[1] == len(generated)
    for values in (prompt[~padding], written):
        assert values.std().item() == pytest.approx(0.5 * 0.4, rel=0.1)
        assert abs(values.mean().item()) < 4 * 0.2 / values.numel() ** 0.5
    # No two tokens share a draw.
    rows = torch.cat([prompt[~padding], written.flatten(0, 1)])
    assert len(rows.unique(dim=0)) == len(rows)


def test_noise_is_scaled_by_the_runs_sigma_and_zero_is_none(run, folder, monkeypatch):
    made: list[tuple[NoiseSource, float, list[str]]] = []

    class Recorded(NoiseStream):
        def __init__(self, noise, gamma, ids, lengths) -> None:
            made.append((noise, gamma, list(ids)))
            super().__init__(noise, gamma, ids, lengths)

    monkeypatch.setattr(generate, "NoiseStream", Recorded)
    clean = outputs(run, request(folder))
    noisy = outputs(run, request(folder, gamma=2.0, noise_seed=3))
    assert clean != noisy
    assert outputs(run, request(folder, gamma=0.0, noise_seed=3)) == clean
    noise, gamma, names = next(one for one in made if one[1])
    assert noise == NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, 3)
    assert gamma == 2.0
    assert names == [f"{row}" for row in range(len(ASKED))]
