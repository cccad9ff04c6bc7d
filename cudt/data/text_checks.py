"""Checks of texts before training: a tokenizer that belongs to its model, and words that it
knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cudt.data.findings import Finding
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

Tokens = Sequence["np.ndarray[Any, Any]"]
#: With a larger share of unknown tokens, examples hardly differ.
_HOPELESS = 0.9
#: Special tokens that examples and their padding contain, but for the unknown one.
_ROLES = ("pad", "cls", "sep", "bos", "eos")


def check_vocabulary(tokenizer: Any, n_embeddings: int, name: str) -> None:
    """Refuse a tokenizer that cannot belong to a model with this number of embeddings.

    A model may have spare embeddings (their number is often rounded up), but not as many as tokens.
    A tokenizer may have added tokens without an embedding that texts do not contain, such as
    placeholders of images.
    """
    special = [getattr(tokenizer, f"{role}_token_id") or 0 for role in ("unk", *_ROLES)]
    n_tokens = max(tokenizer.vocab_size, 1 + max(special))
    if n_tokens > n_embeddings or 2 * len(tokenizer) < n_embeddings:
        raise UserError(
            f"model '{name}': its tokenizer has {n_tokens} tokens, and the model {n_embeddings} "
            "embeddings; use "
            "a tokenizer and a model that belong together"
        )


def unknown(tokenizer: Any, tokens: Tokens, what: str) -> Finding:
    """Tokens that stand for unknown words; refuses a split in which there is hardly anything
    else.
    """
    import numpy as np

    every = np.concatenate(tokens)
    number = _unknown_token(tokenizer)
    special = [one for one in tokenizer.all_special_ids if one != number]
    words = every[~np.isin(every, special)]
    found = Finding(
        "unknown words",
        int((words == number).sum()) if number is not None else 0,
        len(words),
        "tokens",
    )
    if not len(words) or found.share > _HOPELESS:
        problem = (
            f"{found.share:.0%} of the tokens stand for unknown words"
            if len(words)
            else "no text has a token"
        )
        raise UserError(
            f"{what} data: {problem}; the texts are empty, or the tokenizer's vocabulary is "
            "missing or made for "
            "another language: check the column of the texts and model.pretrained"
        )
    return found


def _unknown_token(tokenizer: Any) -> int | None:
    """None for tokenizers that can write every text; some of them name the token that ends texts
    (GPT-2).
    """
    others = {getattr(tokenizer, f"{role}_token_id") for role in _ROLES}
    return None if tokenizer.unk_token_id in others else tokenizer.unk_token_id
