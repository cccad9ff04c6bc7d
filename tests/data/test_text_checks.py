from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudt.data import findings, text_checks
from cudt.data.findings import Finding
from cudt.data.text_checks import check_vocabulary
from cudt.data.tokens import tokenise
from cudt.models import causal, encoder, unrolled
from cudt.tasks import text
from cudt.utils.errors import DataWarning, UserError
from tests.pretrained import (
    instructions,
    tiny_llama,
    tiny_llama_tokenizer,
    tiny_pretrained,
    tiny_tokenizer,
)
from tests.texts import write_reviews


def without_vocabulary(folder: Path) -> str:
    """A model folder as some downloads leave it: transformers then makes a tokenizer of five
    special tokens."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    return str(folder)


def reviews(folder: Path, pretrained: str) -> Any:
    write_reviews(folder)
    config = text.Config(
        name="text",
        train="train.csv",
        test="test.csv",
        text="review",
        label="opinion",
        max_length=16,
    )
    return text.build(config, folder, pretrained)


def tokens_of(
    tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int = 64
) -> list[np.ndarray[Any, Any]]:
    return [row["input_ids"] for row in tokenise(tokenizer, texts, max_length)]


# ---------------------------------------------------------------- tokenizer and model


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_model_without_its_vocabulary_is_refused(family, tmp_path):
    tiny_pretrained(tmp_path / "model", family)
    name = without_vocabulary(tmp_path / "model")
    task = reviews(tmp_path, name)
    with pytest.raises(UserError, match=r"tokenizer has [57] tokens, and the model 62 embeddings"):
        encoder.build(encoder.Config(name="encoder", pretrained=name), task, None)
    with pytest.raises(UserError, match=r"tokenizer has [57] tokens"):
        unrolled.build(unrolled.Config(name="unrolled", embeddings_from=name), task, None)


def test_the_tokenizer_of_a_larger_model_is_refused(tmp_path):
    name = tiny_pretrained(tmp_path / "model", vocab_size=40)
    with pytest.raises(UserError, match="its tokenizer has 62 tokens, and the model 40 embeddings"):
        encoder.build(
            encoder.Config(name="encoder", pretrained=name), reviews(tmp_path, name), None
        )
    llama = tiny_llama(tmp_path / "llama", vocab_size=100)
    with pytest.raises(
        UserError, match="its tokenizer has 258 tokens, and the model 100 embeddings"
    ):
        causal.build(causal.Config(name="causal", pretrained=llama), instructions(), None)


def test_spare_embeddings_and_added_tokens_that_texts_do_not_contain_are_allowed():
    tokenizer = tiny_tokenizer()
    size = len(tokenizer)
    # Rounded up to 64 or 128, as many models are.
    for rows in (size, 64, 2 * size):
        check_vocabulary(tokenizer, rows, "model")
    # Gemma 3 has a placeholder of images and no embedding for it.
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    assert len(tokenizer) == size + 1
    check_vocabulary(tokenizer, size, "model")


def test_a_padding_token_that_was_added_without_an_embedding_is_refused():
    tokenizer = tiny_llama_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    with pytest.raises(
        UserError, match="its tokenizer has 259 tokens, and the model 258 embeddings"
    ):
        check_vocabulary(tokenizer, 258, "model")


# ---------------------------------------------------------------- words


def test_unknown_words_are_counted_among_the_words():
    tokenizer = tiny_tokenizer()
    texts = [("the film was zauberhaft",), ("schön !",)]
    found = text_checks.unknown(tokenizer, tokens_of(tokenizer, texts), "train")
    assert (found.count, found.total) == (2, 6)


def test_a_split_of_unknown_words_is_refused():
    tokenizer = tiny_tokenizer()
    with pytest.raises(UserError, match="train data: 100% of the tokens stand for unknown words"):
        text_checks.unknown(tokenizer, tokens_of(tokenizer, [("ganz zauberhaft",)]), "train")
    with pytest.raises(UserError, match="train data: no text has a token"):
        text_checks.unknown(tokenizer, tokens_of(tokenizer, [("",), (" ",)]), "train")


def test_tokenizers_of_bytes_know_every_word():
    tokenizer = tiny_llama_tokenizer()
    # As in GPT-2 and SmolLM: the token that ends texts is also called the unknown one.
    tokenizer.unk_token = tokenizer.eos_token
    rows: list[Any] = [
        np.append(row, tokenizer.eos_token_id)
        for row in tokens_of(tokenizer, [("zauberhaft",), ("schön",)])
    ]
    assert text_checks.unknown(tokenizer, rows, "train").count == 0


# ---------------------------------------------------------------- warnings


def test_leaked_examples_are_counted():
    texts = [("a film",), ("a film",), ("a plot",), ("A FILM",), ("",)]
    assert findings.leaked(texts, [("a plot",), ("",)]) == Finding(
        "examples that are also in the training data", 2, 5
    )


def test_notable_findings_are_one_warning_and_notes_for_the_run():
    few, many = Finding("unknown words", 3, 100), Finding("unknown words", 12, 120, "tokens")
    with pytest.warns(DataWarning, match=r"^train data: unknown words: 12 of 120 tokens \(10%\)$"):
        assert findings.report("train", [few, many]) == {"train: unknown words": 12}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert findings.report("train", [few]) == {}
