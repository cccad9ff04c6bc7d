"""One number for each (seed, example id): what makes an example's noise its own, whatever batch it is met in."""

from __future__ import annotations

import hashlib


def example_seed(seed: int | str, example_id: str) -> int:
    """64 bits that depend on the seed and the example alone."""
    digest = hashlib.blake2b(f"{seed}\x00{example_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
