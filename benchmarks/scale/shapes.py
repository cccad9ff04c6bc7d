"""The sizes that a cost is computed from, of the paper's models and of small ones of the same classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Family = Literal["encoder", "vit", "causal", "dust", "ut_video", "ut"]

#: Rank of the paper's adapters.
RANK = 6


@dataclass(frozen=True)
class Shape:
    """A model and one batch for it."""

    family: Family
    layers: int
    width: int
    """Numbers of a token's state; of DUST and UT for video, the pixels of a patch."""
    inner: int
    """Width inside the feed-forward network; atoms of a dictionary; of UT, the width of its attention."""
    tokens: int
    """Tokens of a sequence, padding included; of DUST and UT for video, the frames of a window."""
    heads: int = 1
    keys: int = 0
    """Width of all keys of a causal model, which is less than that of its queries if heads share them."""
    words: int = 0
    """The vocabulary: of a causal model that of the readout."""
    read: int = 0
    """Tokens with a label of each example (causal)."""
    examples: int = 1
    sequences: int = 1
    """Sequences of each example: images of a video, or positions of patches."""
    tied: bool = False
    lora: bool = True
    recompute: bool = False
    """Gradient checkpointing."""

    @property
    def rows(self) -> int:
        """Sequences in the batch."""
        return self.examples * self.sequences


#: One example of each of the paper's recipes, by the end of the recipe's name; lengths and layers are the recipe's.
_ROBERTA = Shape("encoder", 24, 1024, 4096, 512, heads=16, words=50_265)
_BERT = Shape("encoder", 12, 768, 3072, 512, heads=12, words=30_522)
_UT = Shape("ut", 3, 768, 64, 512, words=30_522, tied=True)
_VIT = Shape("vit", 12, 768, 3072, 197, heads=12, sequences=8)
_DUST = Shape("dust", 5, 256, 576, 8, sequences=100)
_LLAMA = Shape("causal", 32, 4096, 14_336, 512, 32, 1024, 128_256, read=64, recompute=True)
PAPER = {
    "roberta": _ROBERTA,
    "bert": _BERT,
    "distilbert": replace(_BERT, layers=6),
    "ut": _UT,
    "dust": _DUST,
    "ut_video": replace(_DUST, family="ut_video", tied=True),
    "vit": _VIT,
    "llama": _LLAMA,
    "llama-70b": replace(_LLAMA, layers=80, width=8192, inner=28_672, heads=64),
}
