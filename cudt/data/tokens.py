"""The tokens of texts, and a hash of everything that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Inputs = dict[str, "np.ndarray[Any, Any]"]
_FORMAT = "1"


def tokenise(tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int) -> list[Inputs]:
    """The tokenizer's inputs for each example. Pairs are joined with the tokenizer's separator."""
    import numpy as np

    parts = [list(part) for part in zip(*texts, strict=True)]
    encoded = tokenizer(*parts, truncation=True, max_length=max_length, return_attention_mask=False)
    names = list(encoded)
    for name in names:
        # An empty text to which the tokenizer adds nothing becomes one unknown token.
        nothing = [tokenizer.unk_token_id or 0] if name == "input_ids" else [0]
        encoded[name] = [row or nothing for row in encoded[name]]
    columns = zip(*(encoded[name] for name in names), strict=True)
    return [
        {name: np.asarray(row, np.int32) for name, row in zip(names, rows, strict=True)}
        for rows in columns
    ]


def key(tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int) -> str:
    """A hash of everything the tokens depend on."""
    settings = [
        _FORMAT,
        _description(tokenizer),
        tokenizer.truncation_side,
        *tokenizer.model_input_names,
    ]
    digest = hashlib.blake2b(digest_size=16)
    for part in (
        *settings,
        str(max_length),
        *(part for one in texts for part in (str(len(one)), *one)),
    ):
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _description(tokenizer: Any) -> str:
    """Everything that a tokenizer does, as text."""
    if not tokenizer.is_fast:
        return repr(
            (type(tokenizer).__name__, tokenizer.init_kwargs, sorted(tokenizer.get_vocab().items()))
        )
    backend = tokenizer.backend_tokenizer
    # A tokenizer keeps the truncation of its last call; every call sets it, and the key has it
    # separately.
    backend.no_truncation()
    backend.no_padding()
    return backend.to_str()
