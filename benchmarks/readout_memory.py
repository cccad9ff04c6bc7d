"""How much memory one update takes: ERM, constrained, and constrained with all logits at once.

    python -m benchmarks.readout_memory

A random Llama of 16 layers, width 256 and 128,256 words reads 512 tokens. Each way runs in a process of its own; what
is printed is the most memory that its process held, less what it held before the model was made. So it counts weights,
activations, gradients and AdamW's state, and the logits that are there at a time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.causal_update import CausalUpdate, Sizes
from cudt.tasks.labelled import Labelled
from cudt.tasks.token_logits import TokenLogits
from cudt.utils.compat import survive_torchvision_mismatch

SIZES = Sizes(layers=16, width=256, heads=4, inner=1024, words=128_256, tokens=512)
WAYS = ("erm", "constrained", "naive")


def all_at_once(self: TokenLogits, labelled: Labelled) -> Tensor:
    return labelled.means(F.cross_entropy(self.head(self.states), labelled.targets, reduction="none"))


def update(way: str, lora: bool) -> float:
    """Run one update; the peak in megabytes."""
    survive_torchvision_mismatch()
    import peft  # noqa: F401  (its code is not what is measured)
    from transformers import LlamaForCausalLM  # noqa: F401

    if way == "naive":
        TokenLogits.mean_losses = all_at_once  # type: ignore[method-assign]
        TokenLogits.adding_to = lambda self, gradient, row: self  # type: ignore[method-assign]
    before = _most_held()
    CausalUpdate(SIZES, "erm" if way == "erm" else "constrained", lora)()
    return _most_held() - before


def _most_held() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run every way in a process of its own, and print them side by side."""
    title = f"MB, {SIZES.layers} layers, {SIZES.tokens} tokens, {SIZES.words:,} words"
    table = Table("", *WAYS, "constrained / erm", title=title)
    for tuning in ("lora", "full"):
        peaks = [peak(way, tuning) for way in WAYS]
        table.add_row(tuning, *(f"{megabytes:,.0f}" for megabytes in peaks), f"{peaks[1] / peaks[0]:.3f}")
    Console().print(table)


def peak(way: str, tuning: str) -> float:
    """The peak of one update in megabytes, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.readout_memory", way, tuning]
    # Memory that is freed is given back at once, so that the peak is what was held, not what malloc had kept.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    if sys.argv[1:]:
        print(update(sys.argv[1], sys.argv[2] == "lora"))
    else:
        main()
