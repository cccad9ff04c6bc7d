"""One readout over a vocabulary, loss and gradients, against the products of matrices that it
needs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.speed.bench import Bench, Outcome, Setting, compared, interleaved
from cudt.models.vocabulary import HeadGradient, TokenLogits

EXAMPLES = 4


@dataclass(frozen=True)
class Sizes:
    """Tokens with a label, width of the model, words of the vocabulary."""

    tokens: int
    width: int
    words: int

    def __str__(self) -> str:
        return f"{self.tokens} tokens × width {self.width} × {self.words:,} words"


SMOLLM = Sizes(512, 576, 49_152)
LLAMA = Sizes(96, 2048, 128_256)


class Readout:
    """States, head and labels, and the ways to compute losses and gradients from them."""

    def __init__(self, sizes: Sizes, trained: bool) -> None:
        torch.manual_seed(0)
        self.states = torch.randn(sizes.tokens, sizes.width, requires_grad=True)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False).requires_grad_(trained)
        self.labels = torch.randint(sizes.words, (EXAMPLES, sizes.tokens // EXAMPLES))
        self.weights = torch.full((1, EXAMPLES), float(sizes.tokens // EXAMPLES))
        # The results of the products: new memory for each would be page faults in the peer's CPU
        # time.
        self.logits = torch.empty(sizes.tokens, sizes.words)
        self.of_states = torch.empty_like(self.states, requires_grad=False)
        self.of_head = torch.empty_like(self.head.weight, requires_grad=False)

    def losses_and_gradients(self) -> None:
        """As an update does it if ∂J/∂f is known before the losses, or the head is frozen."""
        gradient = HeadGradient(self.weights)
        answer = TokenLogits(self.states, self.head).adding_to(gradient, 0)
        losses = answer.mean_losses({"labels": self.labels})
        (losses * self.weights).sum().backward()
        self.states.grad = self.head.weight.grad = None

    def products(self) -> None:
        """The products for logits, states and (if it is trained) head, and nothing else."""
        with torch.no_grad():
            torch.mm(self.states, self.head.weight.t(), out=self.logits)
            torch.mm(self.logits, self.head.weight, out=self.of_states)
            if self.head.weight.requires_grad:
                torch.mm(self.logits.t(), self.states, out=self.of_head)


def measure(setting: Setting) -> list[Outcome]:
    outcomes = []
    for sizes, trained in ((SMOLLM, True), (SMOLLM, False), (LLAMA, False)):
        readout = Readout(sizes, trained)
        times = interleaved(
            readout.losses_and_gradients, readout.products, rounds=5 if trained else 3
        )
        name = f"vocabulary-readout, {'trained' if trained else 'frozen'} head, width {sizes.width}"
        outcomes.append(dataclasses.replace(compared(*times, "CPU s", note=str(sizes)), name=name))
    return outcomes


BENCH = Bench(
    name="vocabulary-readout",
    what="one readout over a vocabulary, loss and gradients ÷ its products of matrices",
    goal=1.15,
    higher_is_better=False,
    measure=measure,
)
