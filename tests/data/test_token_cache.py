from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cudt.data import token_cache
from cudt.data.token_cache import Inputs, tokenise
from cudt.utils.errors import DataWarning, UserError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
SINGLE = [("the film was good",), ("",), ("bad plot and the film was bad",), ("good",)]
PAIRS = [("the film was good", "good film"), ("bad plot", ""), ("", "the film and the plot was bad")]


def make_tokenizer(words: str = "the film plot was good bad and", single: str = "[CLS] $A [SEP]") -> Any:
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


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A separate cache for each test, which stores even a few texts."""
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(token_cache, "_WORTH_KEEPING", 1)
    return tmp_path / "cache" / "tokens"


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """The number of texts in each call of the tokenizer."""
    calls: list[int] = []
    cut = PreTrainedTokenizerFast.__call__

    def count(self, texts, *more, **options):
        calls.append(len(texts))
        return cut(self, texts, *more, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", count)
    return calls


def same(one: list[Inputs], other: list[Inputs]) -> bool:
    if [set(row) for row in one] != [set(row) for row in other]:
        return False
    pairs = [(row[name], twin[name]) for row, twin in zip(one, other, strict=True) for name in row]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


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


# ---------------------------------------------------------------- the cache


@pytest.mark.parametrize("texts", [SINGLE, PAIRS, [("",)], [("",), ("",)]])
def test_cached_tokens_are_those_of_the_tokenizer(texts, cache, asked, monkeypatch):
    written = tokenise(make_tokenizer(), texts, 8)
    assert len(list(cache.iterdir())) == 1
    read = tokenise(make_tokenizer(), texts, 8)
    assert asked == [len(texts)]
    monkeypatch.setattr(token_cache, "_WORTH_KEEPING", 1000)
    direct = tokenise(make_tokenizer(), texts, 8)
    assert asked == [len(texts)] * 2
    assert same(written, direct)
    assert same(read, direct)


def test_a_text_without_tokens_becomes_one_unknown_token(asked):
    bare = make_tokenizer(single="$A")
    first = tokenise(bare, SINGLE, 8)
    assert [len(row["input_ids"]) for row in first] == [4, 1, 7, 1]
    assert first[1]["input_ids"].tolist() == [bare.unk_token_id]
    assert same(tokenise(bare, SINGLE, 8), first)
    assert len(asked) == 1


def test_a_few_texts_are_not_stored(cache, monkeypatch):
    monkeypatch.setattr(token_cache, "_WORTH_KEEPING", len(SINGLE) + 1)
    tokenise(make_tokenizer(), SINGLE, 8)
    assert not cache.exists()


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


def test_every_tokenizer_and_length_has_its_own_key(cache):
    keys = {token_cache.key(make(), SINGLE, length) for make in TOKENIZERS.values() for length in (4, 5)}
    assert len(keys) == 2 * len(TOKENIZERS)
    for make in TOKENIZERS.values():
        tokenise(make(), SINGLE, 5)
    assert len(list(cache.iterdir())) == len(TOKENIZERS)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_do_not_share_cached_tokens(name, monkeypatch):
    for make in TOKENIZERS.values():
        tokenise(make(), SINGLE, 5)
    cached = tokenise(TOKENIZERS[name](), SINGLE, 5)
    monkeypatch.setattr(token_cache, "_WORTH_KEEPING", 1000)
    assert same(cached, tokenise(TOKENIZERS[name](), SINGLE, 5))


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
    assert len({token_cache.key(tokenizer, one, 8) for one in texts}) == len(texts)


def test_a_key_does_not_depend_on_what_the_tokenizer_did_before():
    tokenizer = make_tokenizer()
    first = token_cache.key(tokenizer, SINGLE, 8)
    tokenizer(["good film"], truncation=True, max_length=3, padding="max_length")
    assert token_cache.key(tokenizer, SINGLE, 8) == first == token_cache.key(make_tokenizer(), SINGLE, 8)


# ---------------------------------------------------------------- a damaged cache


def junk(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": junk(b""),
    "junk": junk(b"junk"),
    "an array": lambda path: np.save(path.open("wb"), np.arange(3)),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "something else": lambda path: np.savez(path, lengths=np.arange(3)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_replaced(damage, cache, asked):
    first = tokenise(make_tokenizer(), SINGLE, 8)
    (path,) = cache.iterdir()
    damage(path)
    assert same(tokenise(make_tokenizer(), SINGLE, 8), first)
    assert same(tokenise(make_tokenizer(), SINGLE, 8), first)
    assert len(asked) == 2


def test_a_flipped_byte_never_gives_other_tokens(cache):
    tokenizer = make_tokenizer()
    first = tokenise(tokenizer, SINGLE, 8)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        assert same(tokenise(tokenizer, SINGLE, 8), first), position


@pytest.mark.filterwarnings("ignore:.*texts are tokenized again")
def test_a_folder_instead_of_a_file_is_ignored(cache):
    first = tokenise(make_tokenizer(), SINGLE, 8)
    (path,) = cache.iterdir()
    path.unlink()
    path.mkdir()
    assert same(tokenise(make_tokenizer(), SINGLE, 8), first)


def test_without_a_folder_that_can_be_written_work_goes_on_with_a_warning(tmp_path, monkeypatch, asked):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        with pytest.warns(DataWarning) as warned:
            rows = tokenise(make_tokenizer(), SINGLE, 8)
        assert same(rows, token_cache.cut(make_tokenizer(), SINGLE, 8))
        assert [str(one.message) for one in warned] == [
            f"{tmp_path / 'file' / 'tokens'}: Not a directory; texts are tokenized again by every command; set "
            "CUDT_CACHE to use another folder"
        ]
    assert len(asked) == 4


def test_a_tokenizer_that_cannot_read_a_text_is_reported():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.model = models.WordLevel({"a": 0}, unk_token="[UNK]")
    with pytest.raises(UserError, match=r"^tokenizer '.*': cannot read a text \(.*Missing \[UNK\] token.*\); use the"):
        token_cache.cut(tokenizer, [("b",)], 8)


def test_the_cache_is_in_cudt_cache_or_in_the_home_folder(tmp_path, monkeypatch):
    assert token_cache.folder() == tmp_path / "cache" / "tokens"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in (lambda: monkeypatch.setenv("CUDT_CACHE", ""), lambda: monkeypatch.delenv("CUDT_CACHE")):
        unset()
        assert token_cache.folder() == tmp_path / ".cache" / "cudt" / "tokens"


# ---------------------------------------------------------------- long texts


def lengths_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of the longest text of each call of a tokenizer from now on."""
    lengths: list[int] = []
    call = PreTrainedTokenizerFast.__call__

    def count(self, *parts, **options):
        lengths.append(max(len(text) for part in parts for text in ([part] if isinstance(part, str) else part)))
        return call(self, *parts, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", count)
    return lengths


def literal(tokenizer: Any, texts: tuple[str, ...], max_length: int) -> list[int]:
    """The tokens by their definition: the longer text loses tokens first, then both, the one that was shorter first."""
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    room = max_length - (3 if len(rows) == 2 else 2)
    shorter = min(rows, key=len)
    while sum(map(len, rows)) > room:
        longest = max(rows, key=len) if len(rows[0]) != len(rows[-1]) else shorter
        longest.pop(0 if tokenizer.truncation_side == "left" else -1)
    return [2, *rows[0], 3, *(rows[1] + [3] if len(rows) == 2 else [])]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_length", [11, 12])
@pytest.mark.parametrize(
    "sizes", [(300, 300), (300, 2), (2, 300), (300, 7), (4, 300), (1000, 1001), (40_000,), (20_000, 30_000)]
)
def test_a_long_text_has_the_tokens_of_its_whole_without_reading_all_of_it(sizes, max_length, side, monkeypatch):
    tokenizer = make_tokenizer()
    tokenizer.truncation_side = side
    words = ["the", "film", "plot", "was", "good", "bad", "and"]
    texts = tuple(
        " ".join(words[(number * number + part) % 7] for number in range(size)) for part, size in enumerate(sizes)
    )
    expected = literal(tokenizer, texts, max_length)
    lengths = lengths_read(monkeypatch)
    (found,) = token_cache.cut(tokenizer, [texts], max_length)
    assert found["input_ids"].tolist() == expected
    assert max(lengths) <= max_length * (1000 if len(texts) == 1 else 16)
