"""Peak memory of a constrained update of a causal model against ERM's: all layers are read, logits are not stored."""

from __future__ import annotations

from benchmarks import readout_memory
from benchmarks.speed.bench import Bench, Outcome, Setting


def measure(setting: Setting) -> list[Outcome]:
    outcomes = []
    for tuning, what in (("lora", "LoRA"), ("full", "all weights")):
        erm, constrained = (readout_memory.peak(way, tuning) for way in ("erm", "constrained"))
        outcomes.append(Outcome(constrained, erm, "MB", limit=1.0, name=f"causal-memory, {what}"))
    return outcomes


BENCH = Bench(
    name="causal-memory",
    what="peak memory of a constrained update of a causal model ÷ ERM's",
    goal=1.15,
    higher_is_better=False,
    measure=measure,
)
