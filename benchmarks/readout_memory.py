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
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from rich.console import Console
from rich.table import Table
from torch import Tensor

from cudt.data.batching import Batch
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives.base import make_objective
from cudt.models.causal import Config, Lora
from cudt.models.causal_network import Causal
from cudt.models.layer_losses import LayerwiseLosses
from cudt.tasks.alpaca import Alpaca
from cudt.tasks.base import IGNORED
from cudt.tasks.token_logits import TokenLogits
from cudt.utils.compat import survive_torchvision_mismatch

WORDS, LAYERS, WIDTH, TOKENS = 128_256, 16, 256, 512
WAYS = ("erm", "constrained", "naive")


def batch() -> Batch:
    """One example whose every token but the first is to be predicted."""
    torch.manual_seed(0)
    tokens = torch.randint(WORDS, (1, TOKENS))
    labels = torch.cat([tokens[:, 1:], torch.tensor([[IGNORED]])], 1)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels, "ids": ["0"]}


def model(lora: bool) -> Causal:
    survive_torchvision_mismatch()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
    )
    settings = Config(name="causal", pretrained="random", lora=Lora() if lora else None)
    return Causal(LlamaForCausalLM(config), settings)


def all_at_once(self: TokenLogits, targets: Tensor) -> Tensor:
    return F.cross_entropy(self.head(self.states), targets, reduction="none")


def update(way: str, lora: bool) -> float:
    """Run one update; the peak in megabytes."""
    survive_torchvision_mismatch()
    import peft  # noqa: F401  (its code is not what is measured)
    from transformers import LlamaForCausalLM  # noqa: F401

    if way == "naive":
        TokenLogits.losses = all_at_once  # type: ignore[method-assign]
    before = _most_held()
    task: Any = Alpaca(dict, SimpleNamespace(pad_token_id=0), TOKENS)
    layerwise = LayerwiseLosses(model(lora), task).train()
    descent = LayerwiseDescent(LAYERS, 0.05, 12.0)
    descent._multiplier.weight.data.fill_(1.0)
    objective = make_objective("erm" if way == "erm" else "constrained", descent)
    optimizer = torch.optim.AdamW([weight for weight in layerwise.parameters() if weight.requires_grad], lr=1e-4)
    f = layerwise(batch(), layers=objective.layers).mean(1)
    (objective.gradient(f) @ f).backward()
    optimizer.step()
    return _most_held() - before


def _most_held() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run every way in a process of its own, and print them side by side."""
    table = Table("", *WAYS, "constrained / erm", title=f"MB, {LAYERS} layers, {TOKENS} tokens, {WORDS:,} words")
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
