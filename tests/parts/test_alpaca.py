"""Instruction tuning: prompts, tokens, splits and losses."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cudt.config.models import Causal
from cudt.config.tasks import Alpaca as AlpacaSection
from cudt.config.tasks import Limit
from cudt.models import causal
from cudt.noise import DISCRETE
from cudt.tasks import alpaca
from cudt.tasks.alpaca import Alpaca, Dialogue, prompt_text, prompt_tokens
from cudt.tasks.base import IGNORED, SPLITS, missing_data
from cudt.tasks.text import Row
from cudt.utils.errors import UserError
from tests.pretrained import tiny_llama, tiny_llama_tokenizer
from tests.texts import build, write_instructions

INSTRUCTION = "Sort these words by length, and say which of them is the longest."
GIVEN = "a list of words that is much longer than it needs to be, from ant to zebra and back again"
EOS = 1
BYTES = tiny_llama_tokenizer()


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    return tiny_llama(tmp_path_factory.mktemp("pretrained") / "llama")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_instructions(tmp_path_factory.mktemp("instructions")).parent


def of_texts(*texts: tuple[str, str, str], max_length: int = 400, tokenizer: Any = None) -> Alpaca:
    """A task whose splits all have the same few examples: instruction, input and output."""
    rows = [Row(str(number), row[:2], row[2]) for number, row in enumerate(texts)]
    return Alpaca(lambda split: rows, tokenizer or tiny_llama_tokenizer(), max_length)


def length(text: str) -> int:
    return len(BYTES(text)["input_ids"])


def example_of(output: str, max_length: int, tokenizer: Any = None) -> Dialogue:
    task = of_texts((INSTRUCTION, GIVEN, output), max_length=max_length, tokenizer=tokenizer)
    return task.examples("train")[0]


@pytest.mark.parametrize("given", ["", GIVEN])
def test_the_prompt_fits_every_length_and_keeps_the_template(given):
    whole, alone = length(prompt_text(INSTRUCTION, given)), length(prompt_text("", ""))
    for most in range(alone, whole + 2):
        tokens, is_cut = prompt_tokens(BYTES, INSTRUCTION, given, most)
        text = BYTES.decode(tokens[1:])
        assert len(tokens) <= most
        assert text.startswith("Below is an instruction that describes a task")
        assert text.endswith("\n\n### Response:\n")
        assert is_cut == (text != prompt_text(INSTRUCTION, given)) == (most < whole)
        # The input is cut at its end first.
        if given and whole - most < len(given):
            assert text == prompt_text(INSTRUCTION, given[: len(given) - max(0, whole - most)])
    assert prompt_tokens(BYTES, INSTRUCTION, given, alone - 1) == ([], True)


@pytest.mark.filterwarnings("ignore::cudt.utils.errors.DataWarning")
def test_a_long_response_keeps_a_quarter_of_the_length_and_a_short_one_all_it_has():
    prompt = length(prompt_text(INSTRUCTION, GIVEN))
    long, short = example_of("z" * 500, prompt + 4), example_of("zebra", prompt + 4)
    assert len(long.tokens) - long.start == (prompt + 4) // 4
    assert len(short.tokens) - short.start == 6
    assert short.tokens[-1] == EOS
    assert short.start == prompt - 2
    assert long.is_cut
    assert short.is_cut


def test_labels_are_the_next_tokens_if_these_belong_to_the_response():
    task = of_texts(("Say.", "", "a"))
    task.tokenizer.pad_token = task.tokenizer.eos_token
    examples = [
        Dialogue("x", torch.tensor([0, 7, 8, 20, 21, 1]).numpy(), 3),
        Dialogue("y", torch.tensor([0, 9, 1]).numpy(), 2),
    ]
    batch = task.collate(examples)
    _ = IGNORED
    assert batch["labels"].tolist() == [[_, _, 20, 21, 1, _], [_, 1, _, _, _, _]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]
    # Padding with the end token is never counted.
    assert batch["input_ids"].tolist() == [[0, 7, 8, 20, 21, 1], [0, 9, 1, 1, 1, 1]]
    assert batch["labelled"].tolist() == [2, 3, 4, 7]
    assert task.weights(batch).tolist() == [3.0, 1.0]
    assert [task.length(example) for example in examples] == [6, 3]


def test_a_thinned_batch_keeps_some_labels_of_each_example_all_equally_often():
    task = of_texts(("Say.", "", "red and blue"), ("Say.", "", "no"))
    batch = task.collate(task.examples("train"))
    counts = torch.zeros(batch["labels"].shape)
    for seed in range(400):
        few = task.thinned(batch, 4, seed)
        kept = few["labels"] != IGNORED
        counts += kept
        assert kept.sum(1).tolist() == [4, 3]
        assert torch.equal(few["labels"][kept], batch["labels"][kept])
        assert torch.equal(kept.flatten().nonzero().squeeze(1), few["labelled"])
    assert torch.equal(task.thinned(batch, 4, 399)["labels"], few["labels"])
    # Each of 13 labels in 4 of 13 draws, up to four standard errors.
    drawn = counts[0][batch["labels"][0] != IGNORED] / 400
    assert len(drawn) == 13
    assert ((drawn - 4 / 13).abs() < 4 * (4 / 13 * 9 / 13 / 400) ** 0.5).all()


@pytest.mark.filterwarnings("ignore::cudt.utils.errors.DataWarning")
def test_losses_are_those_of_transformers_for_each_example(folder, pretrained):
    task = build(folder, pretrained)
    model = causal.build(Causal(name="causal", pretrained=pretrained, lora=None), task, None).eval()
    library = AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.float32).eval()
    examples = sorted(task.examples("test"), key=task.length)[::3]
    batch = task.collate(examples)
    with torch.no_grad():
        states = model.layer_states(model.signal(batch)[0], batch)
        ours = task.losses(model.readout(states[-1], batch), batch)
        judged, _ = task.judge(model.readout(states[-1], batch), batch)
        for example, loss, again in zip(examples, ours.tolist(), judged.tolist(), strict=True):
            tokens = torch.from_numpy(example.tokens).long().unsqueeze(0)
            labels = tokens.masked_fill(torch.arange(tokens.shape[1]) < example.start, IGNORED)
            expected = library(input_ids=tokens, labels=labels).loss.item()
            assert (loss, again) == pytest.approx((expected, expected), abs=1e-5)


def test_the_reference_loss_is_the_entropy_of_the_response_tokens_in_training():
    # a, a, b, end, b, end
    task = of_texts(("Say.", "", "aab"), ("Say.", "", "b"))
    assert task.reference_loss() == pytest.approx(log(3))


@pytest.mark.filterwarnings("ignore::cudt.utils.errors.DataWarning")
def test_every_instruction_is_in_one_split_by_seed_and_a_limit_changes_no_other(folder, pretrained):
    def ids(task: Alpaca) -> list[list[str]]:
        return [[example.id for example in task.examples(split)] for split in SPLITS]

    whole = ids(build(folder, pretrained))
    assert [len(names) for names in whole] == [24, 8, 8]
    assert sorted(int(name) for names in whole for name in names) == list(range(40))
    assert ids(build(folder, pretrained, data_seed=1)) != whole
    few = ids(build(folder, pretrained, limit=Limit(train=5, test=3)))
    assert few == [whole[0][:5], whole[1], whole[2][:3]]
    with pytest.raises(UserError, match="40 instructions are too few for three splits"):
        build(folder, pretrained, validation_share=0.001).examples("train")


@pytest.mark.filterwarnings("ignore::cudt.utils.errors.DataWarning")
def test_discrete_noise_changes_prompts_but_not_responses(folder, pretrained):
    task = build(folder, pretrained)

    def parts(level: float, seed: int) -> tuple[dict[str, str], dict[str, list[int]]]:
        examples = task.corrupted("test", DISCRETE, level, seed)
        prompts = {one.id: task.tokenizer.decode(one.tokens[1 : one.start]) for one in examples}
        return prompts, {one.id: one.tokens[one.start :].tolist() for one in examples}

    clean, noisy, again, other = parts(0, 0), parts(0.3, 0), parts(0.3, 0), parts(0.3, 1)
    assert noisy == again
    assert noisy[0] != other[0] != clean[0]
    assert noisy[1] == other[1] == clean[1]


def test_without_a_file_the_published_dataset_is_read(folder, pretrained, tmp_path):
    section = AlpacaSection(name="alpaca")
    assert "`hf download tatsu-lab/alpaca --repo-type dataset" in missing_data(section, tmp_path)
    (tmp_path / "alpaca").mkdir()
    (tmp_path / alpaca.FILE).write_text((folder / "own.json").read_text())
    published = build(tmp_path, pretrained, file=None)
    assert published.fingerprint(SPLITS) == build(folder, pretrained).fingerprint(SPLITS)
    assert missing_data(section, tmp_path) == ""
