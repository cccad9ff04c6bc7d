"""The seed of an example's noise, the same in every batch and order."""

from __future__ import annotations

import hashlib


def example_seed(seed: int | str, example_id: str) -> int:
    """A 64-bit hash of the seed and the example's id."""
    digest = hashlib.blake2b(f"{seed}\x00{example_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
