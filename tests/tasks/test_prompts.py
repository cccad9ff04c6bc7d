from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from cudt.tasks.alpaca import Dialogue, Prompt, fitted_dialogue, fitted_prompt, prompt_text
from tests.pretrained import tiny_llama_tokenizer

HEAD = "Below is an instruction that describes a task"
TAIL = "\n\n### Response:\n"
INSTRUCTION = "Sort these words by length, and say which of them is the longest."
GIVEN = "a list of words that is much longer than it needs to be, from ant to zebra and back again"
EOS = 1


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that merges byte pairs: a text may have fewer tokens than its prefix."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<s>", "</s>"], initial_alphabet=sorted(alphabet)
    )
    tokenizer.train_from_iterator(
        [prompt_text(INSTRUCTION, GIVEN), prompt_text(INSTRUCTION, "")], trainer
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


BYTES, MERGES = tiny_llama_tokenizer(), merging_tokenizer()
TOKENIZERS = pytest.mark.parametrize("tokenizer", [BYTES, MERGES], ids=["bytes", "merges"])


def length(text: str, tokenizer: Any = BYTES) -> int:
    return len(tokenizer(text)["input_ids"])


def fitted(tokenizer: Any, instruction: str, given: str, most: int) -> Prompt:
    prompt = fitted_prompt(tokenizer, instruction, given, most)
    assert prompt is not None
    return prompt


def shown(prompt: Prompt, tokenizer: Any = BYTES) -> str:
    assert prompt.tokens[0] == 0
    return tokenizer.decode(prompt.tokens[1:])


def dialogue(
    output: str, max_length: int, instruction: str = INSTRUCTION, given: str = GIVEN
) -> Dialogue:
    made = fitted_dialogue(BYTES, (instruction, given, output), max_length)
    assert made is not None
    return made


# ---------------------------------------------------------------- the template


def test_the_template_is_alpacas_with_and_without_an_input():
    assert prompt_text("Add {x}.", "1 and {input}") == (
        "Below is an instruction that describes a task, paired with an input that provides "
        "further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd {x}.\n\n### "
        "Input:\n"
        "1 and {input}\n\n### Response:\n"
    )
    assert prompt_text("Add.", "") == (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request."
        "\n\n### Instruction:\nAdd.\n\n### Response:\n"
    )


# ---------------------------------------------------------------- prompts that are too long


@TOKENIZERS
def test_a_prompt_that_fits_is_not_cut(tokenizer):
    whole = length(prompt_text(INSTRUCTION, GIVEN), tokenizer)
    prompt = fitted(tokenizer, INSTRUCTION, GIVEN, whole)
    assert shown(prompt, tokenizer) == prompt_text(INSTRUCTION, GIVEN)
    assert not prompt.is_cut
    assert fitted(tokenizer, INSTRUCTION, GIVEN, whole - 1).is_cut


@pytest.mark.parametrize("missing", [1, 7, len(GIVEN) - 1])
def test_as_little_as_needed_is_cut_from_the_end_of_the_input(missing):
    most = length(prompt_text(INSTRUCTION, GIVEN)) - missing
    prompt = fitted(BYTES, INSTRUCTION, GIVEN, most)
    assert shown(prompt) == prompt_text(INSTRUCTION, GIVEN[:-missing])


def test_without_room_for_the_input_its_heading_is_removed_and_the_instruction_is_not_cut():
    most = length(prompt_text(INSTRUCTION, "a")) - 1
    assert shown(fitted(BYTES, INSTRUCTION, GIVEN, most)) == prompt_text(INSTRUCTION, "")


@TOKENIZERS
@pytest.mark.parametrize("given", ["", GIVEN, "  \n " + GIVEN])
def test_the_prompt_fits_every_length_and_keeps_the_template(tokenizer, given):
    alone = length(prompt_text("", ""), tokenizer)
    for most in range(alone - 2, length(prompt_text(INSTRUCTION, given), tokenizer) + 2):
        if most < alone:
            assert fitted_prompt(tokenizer, INSTRUCTION, given, most) is None
            continue
        prompt = fitted(tokenizer, INSTRUCTION, given, most)
        assert len(prompt.tokens) <= most
        text = shown(prompt, tokenizer)
        assert text.startswith(HEAD)
        assert text.endswith(TAIL)
        assert prompt.is_cut == (text != prompt_text(INSTRUCTION, given))


# ---------------------------------------------------------------- prompts with their responses


@pytest.mark.parametrize("output", ["", " ", "\n\t "])
def test_without_a_response_there_is_no_dialogue(output):
    assert fitted_dialogue(BYTES, (INSTRUCTION, GIVEN, output), 1000) is None


def test_a_response_ends_with_the_end_of_text_unless_it_is_cut():
    prompt = length(prompt_text(INSTRUCTION, GIVEN))
    words = BYTES("zebra", add_special_tokens=False)["input_ids"]
    whole, cut = dialogue("zebra", prompt + 6), dialogue("zebra" * 100, prompt + 200)
    assert whole.response == [*words, EOS]
    assert not whole.response_is_cut
    assert cut.response == words * 40
    assert cut.response_is_cut
    assert not whole.prompt.is_cut
    assert not cut.prompt.is_cut


def test_a_long_response_keeps_a_quarter_of_the_length_and_a_short_one_all_it_has():
    prompt = length(prompt_text(INSTRUCTION, GIVEN))
    long, short = dialogue("z" * 500, prompt + 4), dialogue("zebra", prompt + 4)
    assert len(long.response) == (prompt + 4) // 4
    assert long.prompt.is_cut
    assert short.response[-1] == EOS
    assert len(short.response) == 6
    assert len(short.prompt.tokens) == prompt - 2


def test_a_tokenizer_that_ends_every_text_does_not_end_the_prompt():
    tokenizer = tiny_llama_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", EOS)]
    )
    assert tokenizer("zebra")["input_ids"][-1] == EOS
    texts = (INSTRUCTION, GIVEN, "zebra")
    assert fitted_dialogue(tokenizer, texts, 1000) == fitted_dialogue(BYTES, texts, 1000)


@TOKENIZERS
@pytest.mark.parametrize("output", ["a", "zebra " * 60])
def test_prompt_and_response_fit_every_length(tokenizer, output):
    for max_length in range(8, 600, 3):
        made = fitted_dialogue(tokenizer, (INSTRUCTION, GIVEN, output), max_length)
        if made is not None:
            assert len(made.prompt.tokens) + len(made.response) <= max_length
            assert made.response
            assert made.response_is_cut == (made.response[-1] != EOS)
            assert shown(made.prompt, tokenizer).endswith(TAIL)
