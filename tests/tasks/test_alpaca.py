from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from cudt.tasks.token_logits import TokenLogits
from transformers import AutoModelForCausalLM

from cudt.models import causal
from cudt.noise import DISCRETE
from cudt.tasks.alpaca import Alpaca, DialogueTokens
from cudt.tasks.base import IGNORED
from cudt.tasks.prompts import prompt_text
from cudt.utils.errors import DataWarning, UserError
from tests.instructions import build, write_instructions
from tests.pretrained import tiny_llama, tiny_llama_tokenizer

EOS = 1


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    return tiny_llama(tmp_path_factory.mktemp("pretrained") / "llama")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_instructions(tmp_path_factory.mktemp("instructions")).parent


def of_texts(*texts: tuple[str, str, str], max_length: int = 400) -> Alpaca:
    """A task whose splits all have the same few examples: instruction, input and output."""
    rows: list[tuple[str, tuple[str, ...]]] = [
        (f"{number}", row) for number, row in enumerate(texts)
    ]
    return Alpaca(
        lambda: {"train": rows, "validation": rows, "test": rows},
        tiny_llama_tokenizer(),
        max_length,
    )


def own_tokens(text: str) -> list[int]:
    return tiny_llama_tokenizer()(text, add_special_tokens=False)["input_ids"]


# ---------------------------------------------------------------- tokens and batches


def test_an_example_is_the_prompt_and_the_response_with_its_end():
    (example,) = of_texts(("Say red.", "", "red")).examples("train")
    prompt = [0, *own_tokens(prompt_text("Say red.", ""))]
    assert example.tokens.tolist() == [*prompt, *own_tokens("red"), EOS]
    assert example.start == len(prompt)


def test_labels_are_the_next_tokens_if_these_belong_to_the_response():
    task = of_texts(("Say.", "", "a"))
    examples = [
        DialogueTokens("x", torch.tensor([0, 7, 8, 20, 21, 1]).numpy(), 3),
        DialogueTokens("y", torch.tensor([0, 9, 1]).numpy(), 2),
    ]
    batch = task.collate(examples)
    _ = IGNORED
    assert batch["labels"].tolist() == [[_, _, 20, 21, 1, _], [_, 1, _, _, _, _]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]
    assert batch["input_ids"].tolist() == [[0, 7, 8, 20, 21, 1], [0, 9, 1, 0, 0, 0]]
    assert batch["ids"] == ["x", "y"]
    assert task.weights(batch).tolist() == [3.0, 1.0]
    assert [task.length(example) for example in examples] == [6, 3]


def test_padding_with_the_end_token_is_never_counted():
    task = of_texts(("Say.", "", "a"))
    task.tokenizer.pad_token = task.tokenizer.eos_token
    batch = task.collate(
        [
            DialogueTokens("x", torch.tensor([0, 7, 20, 1]).numpy(), 2),
            DialogueTokens("y", torch.tensor([0, 1]).numpy(), 1),
        ]
    )
    assert batch["input_ids"][1].tolist() == [0, 1, 1, 1]
    assert task.weights(batch).tolist() == [2.0, 1.0]
    assert batch["labels"][1].tolist() == [1, IGNORED, IGNORED, IGNORED]


def test_cut_and_skipped_examples_are_reported_with_their_number():
    whole, long_prompt = ("Say.", "", "red"), ("Sort " + "ant, bee, " * 30, "", "ant")
    long_response, empty, blank = ("Say.", "", "blue " * 100), ("Say.", "", ""), ("Say.", "", " \n")
    task = of_texts(whole, long_prompt, long_response, empty, blank, max_length=260)
    with pytest.warns(DataWarning) as warned:
        assert [example.id for example in task.examples("train")] == ["0", "1", "2"]
    assert [str(warning.message) for warning in warned] == [
        "train, 5 examples: 1 prompts cut, 1 responses cut, 2 skipped without a response"
    ]
    assert task.notes() == {
        "train: prompts cut": 1,
        "train: responses cut": 1,
        "train: skipped without a response": 2,
    }
    assert [task.length(example) for example in task.examples("train")[1:]] == [260, 260]


def test_examples_of_the_training_data_are_reported(folder, pretrained):
    # Every other one of the 40 instructions is one of four.
    task = build(folder, pretrained)
    with pytest.warns(
        DataWarning, match="test data: .*examples that are also in the training data"
    ):
        task.examples("test")
    seen = {texts for _, texts in task._texts["train"]}
    leaked = sum(texts in seen for _, texts in task._texts["test"])
    assert task.notes()["test: examples that are also in the training data"] == leaked > 0


def test_a_split_without_usable_examples_is_an_error():
    with (
        pytest.warns(DataWarning),
        pytest.raises(
            UserError, match="none of 2 test examples has a response that fits; raise it"
        ),
    ):
        of_texts(("Say.", "", " "), ("Say.", "", "")).examples("test")


# ---------------------------------------------------------------- losses


def test_losses_are_those_of_transformers_for_each_example(folder, pretrained):
    task = build(folder, pretrained)
    model = causal.build(
        causal.Config(name="causal", pretrained=pretrained, lora=None), task, None
    ).eval()
    library = AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.float32).eval()
    examples = sorted(task.examples("test"), key=task.length)[::3]
    assert len({task.length(example) for example in examples}) > 1
    batch = task.collate(examples)
    with torch.no_grad():
        ours = task.losses(
            model.readout(model.layer_states(model.signal(batch)[0], batch)[-1], batch), batch
        )
        for example, loss in zip(examples, ours.tolist(), strict=True):
            tokens = torch.from_numpy(example.tokens).long().unsqueeze(0)
            labels = tokens.masked_fill(torch.arange(tokens.shape[1]) < example.start, IGNORED)
            assert loss == pytest.approx(
                library(input_ids=tokens, labels=labels).loss.item(), abs=1e-5
            )


def test_the_reference_loss_is_the_entropy_of_the_response_tokens_in_training():
    task = of_texts(("Say.", "", "aab"), ("Say.", "", "b"))
    # a, a, b, end, b, end
    assert task.reference_loss() == pytest.approx(log(3))
    task = of_texts(("Say.", "", "aaa"))
    assert task.reference_loss() == pytest.approx(-(0.75 * log(0.75) + 0.25 * log(0.25)))


# ---------------------------------------------------------------- discrete noise


def test_discrete_noise_changes_prompts_but_not_responses(folder, pretrained):
    task = build(folder, pretrained)

    def parts(examples) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        prompts = {one.id: one.tokens[: one.start].tolist() for one in examples}
        return prompts, {one.id: one.tokens[one.start :].tolist() for one in examples}

    clean, responses = parts(task.examples("test"))
    assert parts(task.corrupted("test", DISCRETE, 0.0, 0)) == (clean, responses)
    noisy, again, other = (parts(task.corrupted("test", DISCRETE, 0.3, seed)) for seed in (0, 0, 1))
    assert noisy == again
    assert noisy[0] != other[0]
    assert noisy[1] == other[1] == responses
    for name, tokens in noisy[0].items():
        text = task.tokenizer.decode(tokens[1:])
        assert text.startswith("Below is an instruction that describes a task")
        assert text.endswith("### Response:\n")
        assert tokens != clean[name]


# ---------------------------------------------------------------- fewer tokens


def chosen(batch: dict[str, Any]) -> list[list[int]]:
    return [(row != IGNORED).nonzero().squeeze(1).tolist() for row in batch["labels"]]


def test_thinned_batches_keep_some_labels_and_change_nothing_else(folder, pretrained):
    task = build(folder, pretrained)
    batch = task.collate(task.examples("train")[:6])
    few = task.thinned(batch, 4, "seed")
    for own, kept in zip(chosen(batch), chosen(few), strict=True):
        assert len(kept) == 4
        assert set(kept) < set(own)
    kept = few["labels"] != IGNORED
    assert torch.equal(few["labels"][kept], batch["labels"][kept])
    assert all(few[name] is batch[name] for name in ("input_ids", "attention_mask", "ids"))


def test_the_expected_loss_of_a_thinned_batch_is_that_of_the_whole_batch():
    task = of_texts(
        ("Say.", "", "red and blue"), ("Say.", "", "no"), ("Say.", "", "green, white and red again")
    )
    batch = task.collate(task.examples("train"))
    generator = torch.Generator().manual_seed(0)
    states, head = (
        torch.randn(*batch["labels"].shape, 8, generator=generator) * 3,
        torch.nn.Linear(8, 258),
    )

    def losses(counted: dict[str, Any]) -> torch.Tensor:
        return task.losses(TokenLogits(states[counted["labels"] != IGNORED], head), counted)

    with torch.no_grad():
        full = losses(batch)
        draws = torch.stack([losses(task.thinned(batch, 5, seed)) for seed in range(600)])
    standard_error = draws.std(0) / len(draws) ** 0.5
    assert (standard_error[[0, 2]] > 0).all()
    assert ((draws.mean(0) - full).abs() <= 4 * standard_error + 1e-5).all()
    # As in training: examples are weighted by all their tokens.
    weights = task.weights(batch)
    means = draws @ weights / weights.sum()
    assert abs(means.mean() - full @ weights / weights.sum()) <= 4 * means.std() / len(means) ** 0.5
