from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from cudt.config import recipe
from cudt.evaluation import generate
from cudt.evaluation.generate import NoiseStream, Request, complete
from cudt.models.causal_network import Causal
from cudt.noise.source import NoiseSource, SignalShape, standard_noise
from cudt.runs.completions import write_completions
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.tasks.prompts import prompt_text
from cudt.training import trained as trained_models
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
    write_recipe(folder, tiny_llama(folder / "llama", tie_word_embeddings=False, initializer_range=0.5))
    (folder / "ask.json").write_text(json.dumps(ASKED), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> Run:
    return train(folder, tmp_path_factory.mktemp("outputs"), "training.epochs=1", "training.learning_rate=3e-2")


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
            prompt = tokenizer(prompt_text(row["instruction"], row.get("input", "")), return_tensors="pt")
            tokens = {name: prompt[name] for name in ("input_ids", "attention_mask")}
            written = model.generate(**tokens, max_new_tokens=TOKENS, do_sample=False, pad_token_id=1)
            text = tokenizer.decode(written[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
            found.append(text.strip())
        return found

    untrained = answers(base)
    expected = answers(PeftModel.from_pretrained(base, str(run.path / "model")).eval())
    assert outputs(run, request(folder)) == expected != untrained
    assert len(set(expected)) > 3


def test_a_completion_has_the_keys_that_alpacaeval_reads(run, folder):
    found = completions(run, request(folder))
    assert [list(one) for one in found] == [["instruction", "output", "generator", "dataset"]] * len(ASKED)
    assert [one["dataset"] for one in found] == ["short", "long", "ask", "ask", "ask"]
    assert {one["generator"] for one in found} == {"tiny-alpaca-run"}
    # A judge is shown the input below the instruction, where there is one.
    assert [one["instruction"] for one in found] == [
        "Say red.",
        "Repeat the colour that follows.\n\nblue",
        *(row["instruction"] for row in ASKED[2:]),
    ]


def test_no_data_are_needed_to_answer(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not Path("own.json").exists()
    assert len(outputs(run, request(folder, limit=1))) == 1


def test_checkpointing_does_not_change_what_is_written(run, folder):
    expected = completions(run, request(folder))
    shutil.rmtree(run.path / "completions")
    checkpointing = recipe.load(str(folder / "tiny-alpaca.yaml"), ["model.gradient_checkpointing=true"])
    assert completions(Run(run.path, checkpointing), request(folder)) == expected


def test_completions_of_other_weights_have_a_folder_and_a_name_of_their_own(run, folder):
    last = run.with_weights("last")
    path = generate.generate(last, request(folder, limit=1), "cpu", None, lambda batches, total, what: batches)
    assert path.parent == run.path / "last" / "completions"
    own = generate.path_of(run, request(folder))
    (completion,) = json.loads(path.read_text(encoding="utf-8"))
    # The only epoch is the best and the last.
    assert completion == {**completions(run, request(folder, limit=1))[0], "generator": f"{run.recipe.name}-run-last"}
    assert generate.compare(own, path, 1).name == f"{own.stem}-against-run-last.json"
    assert generate.compare(path, own, 1).name == f"{own.stem}-against-run.json"


# ---------------------------------------------------------------- batches and resumption


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_completions_do_not_depend_on_the_batch_nor_on_where_a_command_went_on(run, folder, gamma):
    whole = completions(run, request(folder, gamma=gamma))
    assert len(whole) == len(ASKED)
    path = run.path / "completions" / f"{request(folder, gamma=gamma).name}.json"
    for size, kept in [(1, 0), (2, 0), (8, 3), (2, 1), (8, 5)]:
        write_completions(path, whole[:kept])
        assert completions(run, request(folder, gamma=gamma, batch_size=size)) == whole


def test_the_file_is_written_every_few_seconds_and_at_an_interruption(run, folder, monkeypatch):
    """Before: once for every batch, as a whole and with its checksum."""
    whole, writes = completions(run, request(folder)), []
    path = run.path / "completions" / f"{request(folder).name}.json"

    def write(where: Path, done: list[Any]) -> None:
        writes.append(len(done))
        write_completions(where, done)

    def interrupted(batches, total, what):
        yield from itertools.islice(batches, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "write_completions", write)
    asked = request(folder, batch_size=1)
    write_completions(path, [])
    assert completions(run, asked) == whole
    write_completions(path, [])
    with pytest.raises(KeyboardInterrupt):
        generate.generate(run, asked, "cpu", None, interrupted)
    assert writes == [len(ASKED), 2]
    monkeypatch.setattr(generate, "_INTERVAL", 0.0)
    assert completions(run, asked) == whole
    assert writes == [len(ASKED), 2, *range(3, len(ASKED) + 1)]


def test_what_is_written_already_is_not_written_again(run, folder, monkeypatch):
    whole = completions(run, request(folder))
    monkeypatch.setattr("cudt.training.trained.load", lambda *_: pytest.fail("the model was built"))
    assert completions(run, request(folder)) == whole


def test_a_limit_answers_the_first_and_a_larger_one_continues(run, folder):
    assert not generate.is_done(run, request(folder, limit=2))
    two = completions(run, request(folder, limit=2))
    assert len(two) == 2
    assert generate.is_done(run, request(folder, limit=2))
    assert not generate.is_done(run, request(folder))
    assert completions(run, request(folder))[:2] == two
    assert len(completions(run, request(folder, limit=3))) == len(ASKED)


def test_every_setting_that_changes_completions_has_a_file_of_its_own(run, folder):
    settings: list[dict[str, Any]] = [{}, {"gamma": 0.5}, {"noise_seed": 1}, {"max_new_tokens": 3}]
    names = {request(folder, **changes).name for changes in settings}
    assert len(names) == 4
    assert request(folder, batch_size=1, limit=2).name == request(folder).name


# ---------------------------------------------------------------- noise


@pytest.fixture
def model(run) -> Causal:
    model = trained_models.load(run, "cpu", None).model
    assert isinstance(model, Causal)
    return model


PROMPTS = [[0, *range(40, 70)], [0, *range(90, 100)]]


def looked_up(model: Causal, stream: Callable[[Tensor], Tensor] | None) -> list[tuple[Tensor, Tensor]]:
    """While two prompts are answered: tokens that are looked up, and by how much what is handed on differs."""
    words, seen = model.lm.get_input_embeddings(), []

    def record(module: Any, given: tuple[Tensor], handed_on: Tensor) -> None:
        seen.append((given[0], handed_on - words.weight[given[0]]))

    hook = words.register_forward_hook(record)
    tokenizer = AutoTokenizer.from_pretrained(model.lm.peft_config["default"].base_model_name_or_path)
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
    return NoiseStream(NoiseSource("gaussian", 0.4, seed), gamma, ["x", "y"], [len(prompt) for prompt in PROMPTS])


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


def test_a_prompts_noise_is_that_of_evaluation_for_the_same_id_and_seed(model):
    (_, prompt), *_ = looked_up(model, stream())
    drawn = standard_noise("gaussian", 7, ["x", "y"], SignalShape([31, 11], 31, (16,)))
    assert torch.allclose(prompt[0], 0.2 * drawn[0], atol=1e-6)
    assert torch.allclose(prompt[1, 20:], 0.2 * drawn[1, :11], atol=1e-6)


def test_another_seed_is_other_noise_and_gamma_scales_one_draw(model):
    first, again, twice, otherwise = (
        looked_up(model, made)[0][1] for made in (stream(), stream(), stream(gamma=1.0), stream(seed=8))
    )
    assert torch.equal(first, again)
    assert torch.allclose(twice, 2 * first, atol=1e-6)
    assert not torch.allclose(otherwise, first, atol=0.01)


def test_without_noise_every_token_is_looked_up_as_it_is(model):
    assert all(noise.abs().max() == 0 for _, noise in looked_up(model, None))


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
