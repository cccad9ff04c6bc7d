"""A constrained update of a causal model against ERM's and the products of the readouts that ERM does not have."""

from __future__ import annotations

import dataclasses

import torch

from benchmarks.causal_update import CausalUpdate, Sizes
from benchmarks.speed.bench import Bench, Outcome, Setting, compared, interleaved

#: A SmolLM2-135M with 4 of its 30 layers.
SIZES = Sizes(layers=4, width=576, heads=9, inner=1536, words=49_152, tokens=256)


class OtherReadouts:
    """The products of matrices of a readout at every layer but the last."""

    def __init__(self, trained: bool) -> None:
        self.trained = trained
        self.states = torch.randn(SIZES.tokens - 1, SIZES.width)
        self.head = torch.randn(SIZES.words, SIZES.width)
        # The results of the products: new memory for each would be page faults in the peer's CPU time.
        self.logits = torch.empty(SIZES.tokens - 1, SIZES.words)
        self.of_states, self.of_head = torch.empty_like(self.states), torch.empty_like(self.head)

    def __call__(self) -> None:
        for _ in range(SIZES.layers - 1):
            torch.mm(self.states, self.head.t(), out=self.logits)
            torch.mm(self.logits, self.head, out=self.of_states)
            if self.trained:
                torch.mm(self.logits.t(), self.states, out=self.of_head)


def measure(setting: Setting) -> list[Outcome]:
    return [_compared(lora) for lora in (True, False)]


def _compared(lora: bool) -> Outcome:
    constrained, erm = (CausalUpdate(SIZES, objective, lora) for objective in ("constrained", "erm"))
    others = OtherReadouts(trained=not lora)

    def peer() -> None:
        erm()
        others()

    outcome = compared(*interleaved(constrained, peer, rounds=5 if lora else 3), "CPU s/step", limit=1.0)
    what = "LoRA" if lora else "all weights"
    note = f"{SIZES.layers} layers of width {SIZES.width}, {SIZES.tokens} tokens, {SIZES.words:,} words"
    return dataclasses.replace(outcome, name=f"causal-step, {what}", note=note)


BENCH = Bench(
    name="causal-step",
    what="constrained update of a causal model ÷ (ERM update + products of the other readouts)",
    goal=1.15,
    higher_is_better=False,
    measure=measure,
)
