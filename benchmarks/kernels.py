"""cudt's own computations against the least that they need: the products of matrices in them, the
time of a device, the import of torch.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bench import Bench, Outcome, interleaved
from cudt import noise
from cudt.config import recipe
from cudt.models.vocabulary import TokenLogits
from cudt.noise import NoiseSource
from cudt.training.train import assemble_model

# ---------------------------------------------------------------- a readout over a vocabulary


def vocabulary_readout(folder: Path) -> list[Outcome]:
    """Loss and gradients of one readout against its products, for SmolLM2's and Llama's sizes."""
    sizes = {
        "SmolLM2, trained": (512, 576, 49_152, True),
        "Llama, frozen": (96, 2048, 128_256, False),
    }
    return [
        Outcome(readout_ratios(*size), name=f"vocabulary-readout, {name} head")
        for name, size in sizes.items()
    ]


def readout_ratios(tokens: int, width: int, words: int, trained: bool) -> list[float]:
    """ours ÷ the products for logits, states and (if it is trained) logits again and head, and
    nothing else.
    """
    torch.manual_seed(0)
    states = torch.randn(tokens, width, requires_grad=True)
    head = nn.Linear(width, words, bias=False).requires_grad_(trained)
    labels = torch.randint(words, (4, tokens // 4))
    weights = torch.full((1, 4), tokens / 4)
    # New memory for each product would be page faults in the peer's CPU time.
    logits, of_states, of_head = (
        torch.empty(tokens, words),
        torch.empty(tokens, width),
        torch.empty(words, width),
    )

    def ours() -> None:
        losses = TokenLogits(states, head).mean_losses({"labels": labels})
        (losses * weights).sum().backward()
        states.grad = head.weight.grad = None

    @torch.no_grad()
    def products() -> None:
        torch.mm(states, head.weight.t(), out=logits)
        torch.mm(logits, head.weight, out=of_states)
        if trained:
            torch.mm(states, head.weight.t(), out=logits)
            torch.mm(logits.t(), states, out=of_head)

    return interleaved(ours, products, rounds=5)


# ---------------------------------------------------------------- a training step of DUST

_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_")


class Recorder(TorchDispatchMode):
    """Counts the products of matrices, by the shapes and strides of their factors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _PRODUCTS:
            self.seen[tuple((tuple(one.shape), one.stride()) for one in args[-2:])] += 1
        return func(*args, **(kwargs or {}))


def dust_step(folder: Path) -> list[Outcome]:
    """FLOP/s of a training step against those of its fastest large product, alone."""
    step = dust_training_step()
    step()
    with Recorder() as recorder:
        step()
    factors = [
        (random(*one), random(*other), count) for (one, other), count in recorder.seen.items()
    ]
    work = [2 * one.numel() * other.shape[-1] * count for one, other, count in factors]
    # The clock is too coarse for small products.
    large = [one[:2] for one, flops in zip(factors, work, strict=True) if flops > 0.02 * sum(work)]
    ratios = []
    for _ in range(5):
        seconds = cpu_seconds(step)
        peak = max(
            2 * one.numel() * other.shape[-1] / cpu_seconds(partial(torch.matmul, one, other), 20)
            for one, other in large
        )
        ratios.append(sum(work) / seconds / peak)
    return [Outcome(ratios, f"{seconds * 1e3:.0f} ms a step")]


def dust_training_step() -> Callable[[], None]:
    """Forward pass, backward pass of a sum of layer losses, clipping and Adam, at the sizes of
    ucsd-dust-cpu on generated video.
    """
    sizes = ("task.size=160", "task.train=2", "model.layers=5", "model.patch=16", "model.atoms=24")
    losses = assemble_model(recipe.load("shapes-dust", sizes), None, torch.device("cpu"))
    batch = losses.task.collate(losses.task.examples("train")[:2])
    drawn, weights = 10 * torch.randn(batch["frames"].shape), list(losses.parameters())
    optimizer = torch.optim.Adam(weights, lr=1e-5, fused=True)

    def step() -> None:
        values = losses(batch, lambda *_: drawn).mean(1)
        (values.log() * torch.linspace(0.1, 1.0, len(values))).sum().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def random(shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Random numbers in memory as a step had them."""
    size = 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    return torch.randn(size).as_strided(shape, stride)


def cpu_seconds(work: Callable[[], object], times: int = 1) -> float:
    """CPU time of one call."""
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times


# ---------------------------------------------------------------- training noise


def training_noise(folder: Path) -> list[Outcome]:
    """The time that a device waits for noise, against its step at the peak of an A100 (312 TFLOP/s
    in bf16), which no model reaches: the real share is smaller.

    Noise is drawn on the device; what is left for the CPU is to launch kernels, measured on torch's
    `meta` device, which computes nothing.
    """
    # Examples, tokens, width, FLOPs of a step: 6 per weight and token, 4 where weights are frozen.
    sizes = {
        "32×512×1024": (32, 512, 1024, 6 * 3.0e8 * 32 * 512),
        "4×512×4096": (4, 512, 4096, 4 * 8.0e9 * 4 * 512),
    }
    return [
        Outcome([one / (flops / 312e12) for one in launches(*size)], name=f"training-noise {name}")
        for name, (*size, flops) in sizes.items()
    ]


class OnMeta:
    """Gaussian noise on the meta device."""

    def standard(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Numbers that are never computed."""
        return torch.randn(tuple(shape), device="meta")


def launches(examples: int, tokens: int, width: int) -> list[float]:
    """CPU seconds of drawing noise for a batch, five times after one to warm up."""
    draw, on_cpu = NoiseSource("gaussian", 0.5, "train 0 0").draw, noise.example_generator
    ids, lengths = [str(number) for number in range(examples)], [tokens] * examples
    shape, device = (examples, tokens, width), torch.device("meta")
    with (
        mock.patch.object(noise, "noise_kind", return_value=OnMeta()),
        mock.patch.object(noise, "example_generator", lambda seed, name, _: on_cpu(seed, name)),
    ):
        work = lambda: 0.4 * draw(ids, lengths, shape, device=device)  # noqa: E731
        return [cpu_seconds(work) for _ in range(6)][1:]


# ---------------------------------------------------------------- refusing a typo


def typo_refusal(folder: Path) -> list[Outcome]:
    """`cudt train` with a key that does not exist, in a process, against `import torch`."""

    def python(code: str, *arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True).stderr

    def refuse() -> None:
        code = "from cudt.cli.main import main; main()"
        error = python(code, "train", "--recipe", "reviews-ut", "--set", "training.epoch=3")
        assert "did you mean 'epochs'?" in error, error

    def cpu_of_children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    return [Outcome(interleaved(refuse, lambda: python("import torch"), clock=cpu_of_children))]


BENCHES = (
    Bench(
        "vocabulary-readout",
        "one readout over a vocabulary, loss and gradients ÷ its products of matrices",
        1.15,
        vocabulary_readout,
    ),
    Bench(
        "training-noise",
        "time that a device waits for training noise ÷ its step at the peak of an A100",
        0.05,
        training_noise,
    ),
    Bench(
        "dust-step",
        "FLOP/s of a training step of DUST (ucsd-dust-cpu) ÷ of its fastest matrix product",
        0.55,
        dust_step,
        at_least=True,
    ),
    Bench(
        "typo-refusal",
        "`cudt train --set training.epoch=3`, refused ÷ `import torch`",
        0.33,
        typo_refusal,
    ),
)
