from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cudt.data.tokens import key, tokenise

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
SINGLE = [("the film was good",), ("",), ("bad plot and the film was bad",), ("good",)]
PAIRS = [
    ("the film was good", "good film"),
    ("bad plot", ""),
    ("", "the film and the plot was bad"),
]


def make_tokenizer(
    words: str = "the film plot was good bad and", single: str = "[CLS] $A [SEP]"
) -> Any:
    """A tokenizer with some words and `[UNK]` that joins pairs like BERT."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *words.split()])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", model_input_names=names
    )


# ---------------------------------------------------------------- tokens


def test_a_text_is_tokenized_between_the_special_tokens():
    first, empty, cut, _ = tokenise(make_tokenizer(), SINGLE, 6)
    assert first["input_ids"].tolist() == [2, 4, 5, 7, 8, 3]
    assert empty["input_ids"].tolist() == [2, 3]
    assert cut["input_ids"].tolist() == [2, 9, 6, 10, 4, 3]
    assert set(first) == {"input_ids", "token_type_ids"}


def test_a_pair_is_joined_by_a_separator_and_each_part_has_its_type():
    first = tokenise(make_tokenizer(), PAIRS, 16)[0]
    assert first["input_ids"].tolist() == [2, 4, 5, 7, 8, 3, 8, 5, 3]
    assert first["token_type_ids"].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_a_text_without_tokens_becomes_one_unknown_token():
    bare = make_tokenizer(single="$A")
    first = tokenise(bare, SINGLE, 8)
    assert [len(row["input_ids"]) for row in first] == [4, 1, 7, 1]
    assert first[1]["input_ids"].tolist() == [bare.unk_token_id]


def changed_side() -> Any:
    tokenizer = make_tokenizer()
    tokenizer.truncation_side = "left"
    return tokenizer


def with_new_word() -> Any:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["awful"])
    return tokenizer


def without_types() -> Any:
    tokenizer = make_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "the same": make_tokenizer,
    "another order of words": lambda: make_tokenizer("film the plot was good bad and"),
    "fewer words": lambda: make_tokenizer("the film plot was good bad"),
    "an added word": with_new_word,
    "another template": lambda: make_tokenizer(single="[CLS] $A"),
    "cut at the other end": changed_side,
    "other inputs": without_types,
}


def test_every_tokenizer_and_length_has_its_own_key():
    keys = {key(make(), SINGLE, length) for make in TOKENIZERS.values() for length in (4, 5)}
    assert len(keys) == 2 * len(TOKENIZERS)


def test_other_texts_have_another_key():
    texts: list[list[tuple[str, ...]]] = [
        [("a", "b")],
        [("b", "a")],
        [("a b",)],
        [("ab",)],
        [("ab", "")],
        [("", "ab")],
        [("a",), ("b",)],
        [("b",), ("a",)],
        [("a",), ("b",), ("",)],
        [("a ",), ("b",)],
        [("a\x00",), ("b",)],
        # Joined, these two would be the same.
        [("a",), ("",), ("b",)],
        [("a", ""), ("", "b")],
    ]
    tokenizer = make_tokenizer()
    assert len({key(tokenizer, one, 8) for one in texts}) == len(texts)


def test_a_key_does_not_depend_on_what_the_tokenizer_did_before():
    tokenizer = make_tokenizer()
    first = key(tokenizer, SINGLE, 8)
    tokenizer(["good film"], truncation=True, max_length=3, padding="max_length")
    assert key(tokenizer, SINGLE, 8) == first == key(make_tokenizer(), SINGLE, 8)
