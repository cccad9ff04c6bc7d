"""Checks of texts before training: a tokenizer that belongs to its model, and examples that a model can learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cudt.data.findings import Finding
from cudt.data.token_cache import bounded
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

Texts = Sequence[tuple[str, ...]]
Tokens = Sequence["np.ndarray[Any, Any]"]
#: With a larger share of unknown tokens, examples hardly differ.
_HOPELESS = 0.9
#: Special tokens that examples and their padding contain.
_ROLES = ("pad", "unk", "cls", "sep", "bos", "eos")


def check_vocabulary(tokenizer: Any, n_embeddings: int, name: str) -> None:
    """Refuse a tokenizer that cannot belong to a model with this number of embeddings.

    A model may have spare embeddings (their number is often rounded up), but not as many as tokens. A tokenizer may
    have added tokens without an embedding that texts do not contain, such as placeholders of images.
    """
    if tokenizer.vocab_size > n_embeddings:
        raise UserError(
            f"model '{name}': its tokenizer has {tokenizer.vocab_size} tokens, and the model {n_embeddings} "
            "embeddings; use a tokenizer and a model that belong together"
        )
    if 2 * len(tokenizer) < n_embeddings:
        raise UserError(
            f"model '{name}': its tokenizer has only {len(tokenizer)} tokens, and the model {n_embeddings} "
            "embeddings; its vocabulary (tokenizer.json, vocab.txt or tokenizer.model) is missing or belongs to "
            "another model: copy the files of the model's own tokenizer"
        )
    for role in _ROLES:
        number = getattr(tokenizer, f"{role}_token_id")
        if number is not None and number >= n_embeddings:
            raise UserError(
                f"model '{name}': the tokenizer's {role} token {getattr(tokenizer, f'{role}_token')!r} has number "
                f"{number}, and the model {n_embeddings} embeddings; use a tokenizer and a model that belong together"
            )


def unknown(tokenizer: Any, tokens: Tokens, what: str) -> Finding:
    """Tokens that stand for unknown words; refuses a split in which there is hardly anything else."""
    import numpy as np

    every = np.concatenate(tokens)
    number = _unknown_token(tokenizer)
    special = [one for one in tokenizer.all_special_ids if one != number]
    words = every[~np.isin(every, special)]
    found = Finding("unknown words", int((words == number).sum()) if number is not None else 0, len(words), "tokens")
    if not len(words) or found.share > _HOPELESS:
        problem = f"{found.share:.0%} of the tokens stand for unknown words" if len(words) else "no text has a token"
        raise UserError(
            f"{what} data: {problem}; the texts are empty, or the tokenizer's vocabulary is missing or made for "
            "another language: check the column of the texts and model.pretrained"
        )
    return found


def _unknown_token(tokenizer: Any) -> int | None:
    """None for tokenizers that can write every text; some of them name the token that ends texts (GPT-2)."""
    others = {getattr(tokenizer, f"{role}_token_id") for role in _ROLES if role != "unk"}
    return None if tokenizer.unk_token_id in others else tokenizer.unk_token_id


def repeated(tokens: Tokens) -> Finding:
    """Examples that are the same as an earlier one, as far as the model reads them."""
    different = {row.tobytes() for row in tokens}
    return Finding("repeated examples", len(tokens) - len(different), len(tokens))


def leaked(texts: Texts, training: Texts) -> Finding:
    """Examples whose texts are also in the training data."""
    known = set(training)
    return Finding("examples that are also in the training data", sum(one in known for one in texts), len(texts))


def empty(texts: Texts) -> Finding:
    """Examples with a text that is empty."""
    return Finding("empty texts", sum(not all(text.strip() for text in one) for one in texts), len(texts))


def shortened(tokenizer: Any, pairs: Texts, tokens: Tokens, max_length: int) -> Finding:
    """Pairs that lose more than half of one text because they are longer than `max_length`.

    The tokenizer cuts the longer text first, so that each text keeps at least half of the room.
    """
    full = [pair for pair, row in zip(pairs, tokens, strict=True) if len(row) >= max_length]
    parts = zip(*([bounded(tokenizer, text, max_length) for text in pair] for pair in full), strict=True)
    lengths = [
        [len(row) for row in tokenizer(list(part), add_special_tokens=False, verbose=False)["input_ids"]]
        for part in parts
    ]
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    count = sum(
        2 * max(room - second, room // 2) < first or 2 * max(room - first, room // 2) < second
        for first, second in zip(*lengths, strict=True)
    )
    return Finding(f"pairs that lose more than half of a text (task.max_length = {max_length})", count, len(pairs))
