"""Tokenized texts, stored on disk in `$CUDT_CACHE/tokens` (default `~/.cache/cudt/tokens`).

File names are a hash of the texts, the length and everything that the tokenizer does: a file can be unused, but never
out of date. Deleting the files is safe; the texts are tokenized again when needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudt.data.sources import explaining, reason_of
from cudt.utils.errors import DataWarning
from cudt.utils.files import cache_folder, write_atomically

if TYPE_CHECKING:
    import numpy as np

Inputs = dict[str, "np.ndarray[Any, Any]"]
_FORMAT = "1"
#: With fewer texts, tokenizing is as fast as reading.
_WORTH_KEEPING = 2000
#: More characters than the tokens of a text have on average, in any language; and more than they usually have.
_LONGEST_TOKEN, _USUAL_TOKEN = 1000, 8


def folder() -> Path:
    return cache_folder() / "tokens"


def tokenise(tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int) -> list[Inputs]:
    """The tokenizer's inputs for each example, from the cache if possible; large splits are added to the cache."""
    if len(texts) < _WORTH_KEEPING:
        return cut(tokenizer, texts, max_length)
    path = folder() / f"{key(tokenizer, texts, max_length)}.npz"
    # A file that cannot be read is made again; damaged archives raise many kinds of errors.
    with contextlib.suppress(Exception):
        return _unpack(path)
    rows = cut(tokenizer, texts, max_length)
    try:
        write_atomically(path, partial(_pack, rows))
    except OSError as error:
        # Work goes on without the cache.
        warnings.warn(
            f"{folder()}: {reason_of(error)}; texts are tokenized again by every command; set CUDT_CACHE to use "
            "another folder",
            DataWarning,
            stacklevel=2,
        )
    return rows


def cut(tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int) -> list[Inputs]:
    """The same without the cache. Pairs are joined with the tokenizer's separator."""
    import numpy as np

    shorten = _trimmed if len(texts[0]) > 1 else bounded
    parts = [[shorten(tokenizer, text, max_length) for text in part] for part in zip(*texts, strict=True)]
    with explaining_tokens(tokenizer):
        encoded = tokenizer(*parts, truncation=True, max_length=max_length, return_attention_mask=False)
    names = list(encoded)
    for name in names:
        # An empty text to which the tokenizer adds nothing becomes one unknown token.
        nothing = [tokenizer.unk_token_id or 0] if name == "input_ids" else [0]
        encoded[name] = [row or nothing for row in encoded[name]]
    columns = zip(*(encoded[name] for name in names), strict=True)
    return [{name: np.asarray(row, np.int32) for name, row in zip(names, rows, strict=True)} for rows in columns]


def explaining_tokens(tokenizer: Any) -> AbstractContextManager[None]:
    """Errors of a tokenizer as one line for the user."""
    return explaining(f"tokenizer '{tokenizer.name_or_path}': cannot read a text", "use the files of one tokenizer")


def bounded(tokenizer: Any, text: str, max_length: int) -> str:
    """The part of a text that its `max_length` tokens can come from.

    Tokenizers read all of a text before they cut it, and need a gigabyte for one of five million characters.
    """
    return _end(tokenizer, text, _LONGEST_TOKEN * max_length)


def _trimmed(tokenizer: Any, text: str, max_length: int) -> str:
    """The part of a text of a pair that has twice `max_length` tokens.

    Of the rest, tokenizers make all pairs of parts that do not fit: 20 GB for two texts of 100,000 characters. More
    than `max_length` tokens of one text never fit, so the pair is cut as if it were whole.
    """
    text, size = bounded(tokenizer, text, max_length), _USUAL_TOKEN * max_length
    while size < len(text):
        part = _end(tokenizer, text, size)
        with explaining_tokens(tokenizer):
            if len(tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]) >= 2 * max_length:
                return part
        size *= 2
    return text


def _end(tokenizer: Any, text: str, size: int) -> str:
    """The characters at the end of a text that the tokenizer does not cut."""
    return text if len(text) <= size else text[-size:] if tokenizer.truncation_side == "left" else text[:size]


def key(tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int) -> str:
    """A hash of everything the tokens depend on."""
    settings = [_FORMAT, _description(tokenizer), tokenizer.truncation_side, *tokenizer.model_input_names]
    return _digest([*settings, str(max_length), *(part for example in texts for part in (str(len(example)), *example))])


def _description(tokenizer: Any) -> str:
    """Everything that a tokenizer does, as text."""
    if not tokenizer.is_fast:
        return repr((type(tokenizer).__name__, tokenizer.init_kwargs, sorted(tokenizer.get_vocab().items())))
    backend = tokenizer.backend_tokenizer
    # A tokenizer keeps the truncation of its last call; every call sets it, and the key has it separately.
    backend.no_truncation()
    backend.no_padding()
    return backend.to_str()


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _pack(rows: Sequence[Inputs], file: Any) -> None:
    import numpy as np

    lengths = np.array([len(row["input_ids"]) for row in rows])
    tokens = np.stack([np.concatenate([row[name] for row in rows]) for name in rows[0]])
    np.savez(file, names=np.array(list(rows[0])), lengths=lengths, tokens=tokens)


def _unpack(path: Path) -> list[Inputs]:
    import numpy as np

    with np.load(path) as stored:
        names, lengths, tokens = stored["names"].tolist(), stored["lengths"], stored["tokens"]
    parts = np.split(tokens, np.cumsum(lengths)[:-1], axis=1)
    return [dict(zip(names, part, strict=True)) for part in parts]
