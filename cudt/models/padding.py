"""Tells transformers whether a batch has padding.

Transformers chooses between kinds of attention by whether a mask hides any token. It reads that from the mask, so the
CPU has to wait until an accelerator has finished everything before. But tokens are counted before a batch is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from cudt.data.batching import TOKEN_COUNTS, Batch


@contextmanager
def known_padding(batch: Batch) -> Iterator[None]:
    """In this context, models of transformers take it from TOKEN_COUNTS; without these they read the mask."""
    if TOKEN_COUNTS not in batch:
        yield
        return
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

    is_padded = min(batch[TOKEN_COUNTS]) < batch["attention_mask"].shape[1]
    replaced = {name: partial(_mask, MASKS[name], is_padded) for name in ("sdpa", "eager", "flash_attention_2")}
    try:
        for name, make in replaced.items():
            # An override of transformers' own registry, in this process and until this context ends.
            MASKS[name] = make
        yield
    finally:
        for name in replaced:
            del MASKS[name]


def _mask(make: Callable[..., Any], is_padded: bool, **arguments: Any) -> Any:
    """The mask that transformers makes of one whose padding is known."""
    if is_padded:
        return make(**{**arguments, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return make(**{**arguments, "attention_mask": None})
