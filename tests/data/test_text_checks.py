from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudt.data import findings, hub, text_checks
from cudt.data.findings import Finding
from cudt.data.text_checks import check_vocabulary
from cudt.data.token_cache import cut
from cudt.models import causal, encoder, unrolled
from cudt.tasks import text
from cudt.utils.errors import DataWarning, UserError
from tests.causal import instructions
from tests.pretrained import VOCABULARY, tiny_llama, tiny_llama_tokenizer, tiny_pretrained, tiny_tokenizer
from tests.texts import write_reviews


def without_vocabulary(folder: Path) -> str:
    """A model folder as some downloads leave it: transformers then makes a tokenizer of five special tokens."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    return str(folder)


def reviews(folder: Path, pretrained: str) -> Any:
    write_reviews(folder)
    config = text.Config(name="text", train="train.csv", test="test.csv", text="review", label="opinion", max_length=16)
    return text.build(config, folder, pretrained)


def tokens_of(tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int = 64) -> list[np.ndarray[Any, Any]]:
    return [row["input_ids"] for row in cut(tokenizer, texts, max_length)]


# ---------------------------------------------------------------- tokenizer and model


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "deberta-v2"])
def test_a_model_without_its_vocabulary_is_refused(family, tmp_path):
    tiny_pretrained(tmp_path / "model", family)
    name = without_vocabulary(tmp_path / "model")
    task = reviews(tmp_path, name)
    with pytest.raises(UserError, match=r"tokenizer has only [57] tokens, and the model 62 embeddings; its vocabulary"):
        encoder.build(encoder.Config(name="encoder", pretrained=name), task, None)
    with pytest.raises(UserError, match=r"tokenizer has only [57] tokens"):
        unrolled.build(unrolled.Config(name="unrolled", embeddings_from=name), task, None)


def test_a_folder_whose_tokenizer_cannot_be_made_says_what_is_missing(tmp_path):
    tiny_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"vocabulary \(tokenizer\.json, vocab\.txt or tokenizer\.model\) is missing"):
        hub.load_tokenizer(str(tmp_path), None)


def test_the_tokenizer_of_a_larger_model_is_refused(tmp_path):
    name = tiny_pretrained(tmp_path / "model", vocab_size=40)
    with pytest.raises(UserError, match="its tokenizer has 62 tokens, and the model 40 embeddings"):
        encoder.build(encoder.Config(name="encoder", pretrained=name), reviews(tmp_path, name), None)
    llama = tiny_llama(tmp_path / "llama", vocab_size=100)
    with pytest.raises(UserError, match="its tokenizer has 258 tokens, and the model 100 embeddings"):
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
    with pytest.raises(UserError, match="the tokenizer's pad token '<pad>' has number 258, and the model 258 embed"):
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
        np.append(row, tokenizer.eos_token_id) for row in tokens_of(tokenizer, [("zauberhaft",), ("schön",)])
    ]
    assert text_checks.unknown(tokenizer, rows, "train").count == 0


# ---------------------------------------------------------------- examples


def test_repeated_empty_and_leaked_examples_are_counted():
    texts = [("a film",), ("a film",), ("a plot",), ("A FILM",), ("",)]
    assert text_checks.repeated(tokens_of(tiny_tokenizer(), texts)) == Finding("repeated examples", 2, 5)
    assert text_checks.empty([*texts, (" \n",)]).count == 2
    assert text_checks.empty([("a", ""), ("a", "b")]).count == 1
    assert text_checks.leaked(texts, [("a plot",), ("",)]).count == 2


def pairs(rng: random.Random, n: int) -> list[tuple[str, ...]]:
    return [(" ".join(["film"] * rng.randint(1, 60)), " ".join(["plot"] * rng.randint(1, 60))) for _ in range(n)]


def test_pairs_that_lose_half_of_a_text_are_those_in_which_the_tokens_say_so():
    tokenizer = tiny_tokenizer()
    for max_length in (8, 20, 33, 64):
        texts = pairs(random.Random(max_length), 200)
        rows = tokens_of(tokenizer, texts, max_length)
        # A literal count, by the words that are left.
        lost = sum(
            any(
                2 * int((row == VOCABULARY[word]).sum()) < len(part.split()) - 1
                for word, part in zip(("film", "plot"), pair, strict=True)
            )
            for pair, row in zip(texts, rows, strict=True)
        )
        found = text_checks.shortened(tokenizer, texts, rows, max_length)
        # The odd token of the room goes to either text.
        assert abs(found.count - lost) <= 0.05 * len(texts)
        assert found.total == 200
    assert lost < 40


def test_pairs_that_fit_lose_nothing():
    texts = pairs(random.Random(0), 50)
    tokenizer = tiny_tokenizer()
    assert text_checks.shortened(tokenizer, texts, tokens_of(tokenizer, texts, 130), 130).count == 0


# ---------------------------------------------------------------- warnings


def test_notable_findings_are_one_warning_and_notes_for_the_run():
    few, many = Finding("empty texts", 3, 100), Finding("unknown words", 12, 120, "tokens")
    with pytest.warns(DataWarning, match=r"^train data: unknown words: 12 of 120 tokens \(10%\)$"):
        assert findings.report("train", [few, many]) == {"train: unknown words": 12}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert findings.report("train", [few]) == {}


def test_a_text_task_warns_of_its_splits_when_they_are_read(tmp_path):
    name = tiny_pretrained(tmp_path / "model")
    (tmp_path / "twice").mkdir()
    task = reviews(tmp_path / "twice", name)
    train = (tmp_path / "twice" / "train.csv").read_text()
    (tmp_path / "twice" / "test.csv").write_text(train)
    with pytest.warns(DataWarning, match="test data: .*examples that are also in the training data: 54 of 60"):
        task.examples("test")
    assert task.notes()["test: examples that are also in the training data"] == 54
