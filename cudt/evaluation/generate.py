"""Completions under noise: `cudt generate` writes them in AlpacaEval's format, or prints those of
single prompts.

Noise is added to every token, including generated ones: their embeddings are perturbed like those
of the prompt. The noise of an instruction depends only on the noise seed and its row in the file,
and decoding is greedy, so that completions depend neither on the batch nor on where an interrupted
command resumes.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from cudt.config.schema import Weights
from cudt.data.batching import n_batches
from cudt.data.loading import ALL, Share, shared
from cudt.data.records import Columns, read_files
from cudt.evaluation.evaluate import load_for_noise
from cudt.evaluation.team import led_by_main, results
from cudt.models.causal_network import Causal
from cudt.models.layer_losses import LayerwiseLosses
from cudt.noise import NoiseSource, example_generator, signal_noise, usable
from cudt.runs.completions import Completion, CompletionSet, read_completions, write_completions
from cudt.runs.run import Run
from cudt.tasks.alpaca import Alpaca
from cudt.tasks.prompts import fitted_prompt
from cudt.training import train as training
from cudt.utils import processes
from cudt.utils.device import DeviceName
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.progress import Track
from cudt.utils.transfer import sent

#: Seconds between two times that completions are written.
_INTERVAL = 5.0
_COLUMNS = Columns(("instruction", "input", "dataset"), None, optional=("input", "dataset"))


@dataclass(frozen=True)
class Instruction:
    """One instruction; its noise depends on `id`."""

    id: str
    instruction: str
    input: str
    dataset: str


@dataclass(frozen=True)
class Decoding:
    """How completions are made."""

    gamma: float
    noise_seed: int
    max_new_tokens: int
    batch_size: int


@dataclass(frozen=True)
class Request:
    """Which instructions to answer, and how."""

    instructions: Path
    gamma: float = 0.0
    noise_seed: int = 0
    max_new_tokens: int = 256
    batch_size: int = 8
    limit: int | None = None
    """Answer only the first `limit` instructions; None answers all."""

    @property
    def decoding(self) -> Decoding:
        """How the instructions are answered."""
        return Decoding(self.gamma, self.noise_seed, self.max_new_tokens, self.batch_size)

    @property
    def completions(self) -> CompletionSet:
        """Everything besides the run that completions depend on."""
        return CompletionSet(
            self.instructions.stem, self.gamma, self.noise_seed, self.max_new_tokens
        )

    @property
    def name(self) -> str:
        """The name of the file, without its suffix."""
        return self.completions.name

    def read(self) -> list[Instruction]:
        """The instructions of the file, in order."""
        rows = read_files([self.instructions], _COLUMNS).texts
        stem = self.instructions.stem
        return [
            Instruction(str(row), instruction, given, dataset or stem)
            for row, (instruction, given, dataset) in enumerate(rows[: self.limit])
        ]


def check(run: Run) -> None:
    """Refuse a run that is not finished, or whose model does not generate text."""
    run.finished_info()
    if run.other_data is not None:
        raise UserError(
            f"'{run.results}': completions do not depend on test data; give '{run.results.parent}'"
        )
    model = run.recipe.settings.model
    if not model.generates_text:
        raise UserError(
            f"'{run.path}' has model {model.name}, which does not generate text; use a run with "
            "model causal"
        )


def generate(
    run: Run, request: Request, device: DeviceName, data_root: Path | None, track: Track
) -> Path:
    """Write completions into the run folder, every few seconds; existing ones are kept. `check` the
    run first.
    """
    path = path_of(run, request)
    asked = request.read()
    done = _read_done(path, asked)
    # The main process writes the file, so that the others may see it later.
    done = processes.from_main(done)
    left = asked[len(done) :]
    if not left:
        return path
    layerwise = load_for_noise(run, device, data_root)
    with led_by_main(layerwise) as leads:
        if leads:
            noise = NoiseSource(
                "gaussian", run.finished_info().sigma_x.evaluation, request.noise_seed
            )
            work = _Completing(left, noise, request.decoding, f"{run.recipe.name}-{run.label}")
            total = n_batches(left, request.batch_size)
            batches = track(
                results(work, layerwise, total), total, f"{run.label} γ = {request.gamma:g}"
            )
            _write_as_they_come(path, done, batches)
    return path


def answer(
    run: Run, prompts: Sequence[str], decoding: Decoding, device: DeviceName, data_root: Path | None
) -> list[str]:
    """The completion of each prompt, which is an instruction in the run's template; writes nothing.

    It is the completion of the same instructions in a file. `check` the run first.
    """
    layerwise = training.load(run, device, data_root)
    sigma_x = training.sigma_of(run, layerwise) if decoding.gamma else 0.0
    asked = [Instruction(str(row), prompt, "", "") for row, prompt in enumerate(prompts)]
    work = _Completing(
        asked, NoiseSource("gaussian", sigma_x, decoding.noise_seed), decoding, run.label
    )
    return [completion["output"] for batch in work(layerwise, ALL) for completion in batch]


def _write_as_they_come(
    path: Path, done: list[Completion], batches: Iterable[list[Completion]]
) -> None:
    """Add the completions of each batch to the file: now and then, because each time it is written
    as a whole.
    """
    written, n_written = time.monotonic(), len(done)
    try:
        for new in batches:
            done += new
            if time.monotonic() - written > _INTERVAL:
                write_completions(path, done)
                written, n_written = time.monotonic(), len(done)
    finally:
        # Also if the command is interrupted.
        if len(done) > n_written:
            write_completions(path, done)


def path_of(run: Run, request: Request) -> Path:
    """The file of a run's completions."""
    return request.completions.path(run.results)


def is_done(run: Run, request: Request) -> bool:
    """Whether every instruction is answered."""
    asked = request.read()
    return len(_read_done(path_of(run, request), asked)) == len(asked)


def compare(first: Path, second: Path, limit: int | None = None) -> Path:
    """Write the completions of two runs (the first `limit`) as pairs, in the format of AlpacaEval's
    annotators.
    """
    one, two = (read_completions(path)[:limit] for path in (first, second))
    pairs = [
        {
            "instruction": a["instruction"],
            "output_1": a["output"],
            "output_2": b["output"],
            "generator_1": a["generator"],
            "generator_2": b["generator"],
            "dataset": a["dataset"],
        }
        for a, b in zip(one, two, strict=True)
    ]
    path = first.with_name(f"{first.stem}-against-{_label(second)}.json")
    write_completions(path, pairs)
    return path


def _label(completions: Path) -> str:
    """The label of the run that a file of completions belongs to (`Run.label`)."""
    results = completions.parent.parent
    return (
        f"{results.parent.name}-{results.name}"
        if results.name in get_args(Weights)
        else results.name
    )


def _read_done(path: Path, asked: Sequence[Instruction]) -> list[Completion]:
    """The completions that an earlier command wrote, in the order of the instructions."""
    if not path.is_file():
        return []
    done = read_completions(path)
    written = [completion["instruction"] for completion in done]
    wanted = [_shown(one) for one in asked[: len(written)]]
    if written[: len(wanted)] != wanted:
        raise UserError(
            f"{path}: contains completions of other instructions; delete it, or rename the "
            "instructions file"
        )
    return done[: len(asked)]


@dataclass(frozen=True)
class _Completing:
    """Answers some instructions, batch by batch."""

    asked: Sequence[Instruction]
    noise: NoiseSource
    decoding: Decoding
    generator: str

    def __call__(self, layerwise: LayerwiseLosses, share: Share) -> Iterator[list[Completion]]:
        """The completions of each batch of one process."""
        size = self.decoding.batch_size
        groups = [self.asked[start : start + size] for start in range(0, len(self.asked), size)]
        return (self._completed(layerwise, group) for group in shared(groups, share))

    def _completed(
        self, layerwise: LayerwiseLosses, asked: Sequence[Instruction]
    ) -> list[Completion]:
        model, task, decoding = layerwise.model, layerwise.task, self.decoding
        assert isinstance(model, Causal)
        assert isinstance(task, Alpaca)
        prompts = [_prompt(model, task, one, decoding.max_new_tokens) for one in asked]
        stream = NoiseStream(
            self.noise,
            decoding.gamma,
            [one.id for one in asked],
            [len(prompt) for prompt in prompts],
        )
        with model.replacing(stream) if decoding.gamma else contextlib.nullcontext():
            outputs = complete(model, task.tokenizer, prompts, decoding.max_new_tokens)
        return [
            {
                "instruction": _shown(one),
                "output": output,
                "generator": self.generator,
                "dataset": one.dataset,
            }
            for one, output in zip(asked, outputs, strict=True)
        ]


def _prompt(model: Causal, task: Alpaca, one: Instruction, max_new_tokens: int) -> list[int]:
    """The tokens of one prompt, truncated if prompt and completion do not fit into the model's
    context.
    """
    most = (model.context_length or sys.maxsize) - max_new_tokens
    prompt = fitted_prompt(task.tokenizer, one.instruction, one.input, most)
    if prompt is None:
        raise UserError(
            f"--max-new-tokens {max_new_tokens}: leaves only {most} tokens of the context for "
            "the prompt; use fewer"
        )
    if prompt.is_cut:
        warnings.warn(
            f"instruction {int(one.id) + 1}: truncated to {most} tokens", DataWarning, stacklevel=2
        )
    return prompt.tokens


def _shown(one: Instruction) -> str:
    """The instruction with its input, because AlpacaEval has no column for the input."""
    return f"{one.instruction}\n\n{one.input}" if one.input.strip() else one.instruction


class NoiseStream:
    """Adds γ·σ_x·ε to token embeddings: first to the prompts, padded on the left, then to one new
    token at a time.
    """

    def __init__(
        self, noise: NoiseSource, gamma: float, ids: Sequence[str], lengths: Sequence[int]
    ) -> None:
        self._noise = noise
        self._gamma = gamma
        self._generators = [example_generator(noise.seed, name) for name in ids]
        self._lengths: Sequence[int] | None = lengths

    def __call__(self, embeddings: Tensor) -> Tensor:
        new = self._lengths or [embeddings.shape[1]] * len(embeddings)
        self._lengths = None
        drawn = torch.zeros(embeddings.shape)
        for row, (length, generator) in enumerate(zip(new, self._generators, strict=True)):
            drawn[row, -length:] = signal_noise(self._noise.kind).standard(
                (length, embeddings.shape[2]), generator
            )
        return embeddings + self._gamma * usable(self._noise.sigma_x) * sent(
            drawn.to(embeddings.dtype), embeddings.device
        )


@torch.no_grad()
def complete(
    model: Causal, tokenizer: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[str]:
    """The model's completion of each prompt, by greedy decoding."""
    from transformers import GenerationConfig

    pad = (
        tokenizer.pad_token_id
        if tokenizer.pad_token_id is not None
        else tokenizer.eos_token_id or 0
    )
    width = max(map(len, prompts))
    device = next(model.parameters()).device
    tokens = torch.tensor(
        [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device
    )
    mask = torch.tensor(
        [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device
    )
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=pad,
    )
    written = model.lm.generate(input_ids=tokens, attention_mask=mask, generation_config=config)
    return [
        text.strip()
        for text in tokenizer.batch_decode(written[:, width:], skip_special_tokens=True)
    ]
