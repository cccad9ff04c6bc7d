"""One readout over a vocabulary, loss and gradients, against the products of matrices that it needs."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.speed.bench import Bench, Outcome, Setting, compared, interleaved
from cudt.tasks.head_gradient import HeadGradient
from cudt.tasks.labelled import Labelled
from cudt.tasks.token_logits import CHUNK, TokenLogits

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
        # The results of the products: new memory for each would be page faults in the peer's CPU time.
        self.logits = torch.empty(sizes.tokens, sizes.words)
        self.of_states = torch.empty_like(self.states, requires_grad=False)
        self.of_head = torch.empty_like(self.head.weight, requires_grad=False)

    def one_pass(self) -> None:
        """As an update does it if ∂J/∂f is known before the losses, or the head is frozen."""
        gradient = HeadGradient(self.weights)
        answer = TokenLogits(self.states, self.head).adding_to(gradient, 0)
        losses = gradient.attach(answer.mean_losses(self._labelled()).unsqueeze(0))
        self._backward((losses * self.weights).sum())

    def two_passes(self) -> None:
        """As an update does it if ∂J/∂f is not known before the losses, and the head is trained."""
        losses = TokenLogits(self.states, self.head).mean_losses(self._labelled())
        self._backward((losses * self.weights[0]).sum())

    def checkpointed(self) -> None:
        """As it was done before: autograd computes the logits of every chunk again in the backward pass."""
        rows = CHUNK // self.head.out_features
        chunks = zip(self.states.split(rows), self.labels.flatten().split(rows), strict=True)
        parts = [checkpoint(self._losses, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        self._backward(torch.cat(parts).sum())

    def products(self) -> None:
        """The products for logits, states and (if it is trained) head, and nothing else."""
        with torch.no_grad():
            torch.mm(self.states, self.head.weight.t(), out=self.logits)
            torch.mm(self.logits, self.head.weight, out=self.of_states)
            if self.head.weight.requires_grad:
                torch.mm(self.logits.t(), self.states, out=self.of_head)

    def _labelled(self) -> Labelled:
        return Labelled.of({"labels": self.labels})

    def _losses(self, states: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(states), targets, reduction="none")

    def _backward(self, loss: Tensor) -> None:
        loss.backward()
        self.states.grad = self.head.weight.grad = None


def measure(setting: Setting) -> list[Outcome]:
    readout = Readout(SMOLLM, trained=True)
    before = _ratio(readout.checkpointed, readout.products)
    trained = compared(
        *interleaved(readout.one_pass, readout.products, rounds=5),
        "CPU s",
        limit=1.0,
        note=f"{SMOLLM}; with checkpointed logits, as before: {before:.2f}",
    )
    again = compared(
        *interleaved(readout.two_passes, readout.products, rounds=3), "CPU s", limit=4 / 3, note=str(SMOLLM)
    )
    del readout
    outcomes = [
        trained,
        dataclasses.replace(again, name="vocabulary-readout, ∂J/∂f unknown (log form)", goal=1.15 * 4 / 3),
    ]
    for sizes in (SMOLLM, LLAMA):
        frozen = Readout(sizes, trained=False)
        outcome = compared(
            *interleaved(frozen.one_pass, frozen.products, rounds=3), "CPU s", limit=1.0, note=str(sizes)
        )
        outcomes.append(dataclasses.replace(outcome, name=f"vocabulary-readout, frozen head, width {sizes.width}"))
    return outcomes


def _ratio(ours: Callable[[], None], peer: Callable[[], None]) -> float:
    times, others = interleaved(ours, peer, rounds=2, clock=time.process_time)
    return statistics.median(one / other for one, other in zip(times, others, strict=True))


BENCH = Bench(
    name="vocabulary-readout",
    what="one readout over a vocabulary, loss and gradients ÷ its products of matrices",
    goal=1.15,
    higher_is_better=False,
    measure=measure,
)
