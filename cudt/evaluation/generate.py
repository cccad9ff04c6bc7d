"""Completions under noise: `cudt generate` writes them in AlpacaEval's format, or prints those of
single prompts.

Noise is added to every token, including generated ones: their embeddings are perturbed like those
of the prompt. The noise of an instruction depends only on the noise seed and its row in the file,
and decoding is greedy, so that completions depend neither on the batch nor on where an interrupted
command resumes.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cudt.data.loader import ALL, Share, n_batches, shared
from cudt.data.text import Columns, read_files
from cudt.evaluation.measure import led_by_main, results
from cudt.models.causal import Causal
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.pretrained import hooked
from cudt.noise import NoiseSource, example_generator, signal_noise, usable
from cudt.runs.run import Run, RunFolder
from cudt.tasks.alpaca import Alpaca, fitted_prompt
from cudt.training.train import load, sigma_of
from cudt.utils import processes
from cudt.utils.device import DeviceName, sent
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.text import Track

Completion = dict[str, str]
FOLDER = "extra/completions"
#: Seconds between two times that completions are written.
_INTERVAL = 5.0
_COLUMNS = Columns(("instruction", "input", "dataset"), optional=("input", "dataset"))


@dataclass(frozen=True)
class Instruction:
    """One instruction; its noise depends on `id`."""

    id: str
    instruction: str
    input: str
    dataset: str

    @property
    def shown(self) -> str:
        """The instruction with its input, because AlpacaEval has no column for the input."""
        return f"{self.instruction}\n\n{self.input}" if self.input.strip() else self.instruction


@dataclass(frozen=True)
class Decoding:
    """How completions are made."""

    gamma: float = 0.0
    noise_seed: int = 0
    max_new_tokens: int = 256
    batch_size: int = 8


@dataclass(frozen=True)
class Request:
    """Which instructions to answer (the first `limit` of a file, or all), and how."""

    instructions: Path
    decoding: Decoding = Decoding()
    limit: int | None = None

    def file(self, run: Run) -> str:
        """The file of a run's completions; its name says all that they depend on."""
        how, stem = self.decoding, self.instructions.stem
        weights = "" if run.other_weights is None else f"-{run.weights}"
        name = f"{stem}-gamma{how.gamma:g}-seed{how.noise_seed}-tokens{how.max_new_tokens}{weights}"
        return f"{FOLDER}/{name}.json"

    def read(self) -> list[Instruction]:
        """The instructions of the file, in order."""
        rows = read_files([self.instructions], _COLUMNS).texts[: self.limit]
        stem = self.instructions.stem
        return [
            Instruction(str(row), asked, given, dataset or stem)
            for row, (asked, given, dataset) in enumerate(rows)
        ]


def check(run: Run) -> None:
    """Refuse a run that is not finished, or whose model does not generate text."""
    run.finished_info()
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
    file, asked, how = request.file(run), request.read(), request.decoding
    done = processes.from_main(_done(run, request, asked))
    if left := asked[len(done) :]:
        layerwise = load(run, device, data_root)
        with led_by_main(layerwise) as leads:
            if leads:
                noise = NoiseSource("gaussian", sigma_of(run, layerwise), how.noise_seed)
                work = _Completing(left, noise, how, f"{run.recipe.name}-{run.label}")
                total = n_batches(left, how.batch_size)
                found = results(work, layerwise, total)
                what = f"{run.label} γ = {how.gamma:g}"
                _write_as_they_come(run, file, done, track(found, total, what))
    return run.path / file


def answer(
    run: Run, prompts: Sequence[str], decoding: Decoding, device: DeviceName, data_root: Path | None
) -> list[str]:
    """The completion of each prompt, as of the same instructions in a file; writes nothing."""
    layerwise = load(run, device, data_root)
    sigma_x = sigma_of(run, layerwise) if decoding.gamma else 0.0
    noise = NoiseSource("gaussian", sigma_x, decoding.noise_seed)
    asked = [Instruction(str(row), prompt, "", "") for row, prompt in enumerate(prompts)]
    work = _Completing(asked, noise, decoding, run.label)
    return [completion["output"] for batch in work(layerwise, ALL) for completion in batch]


def is_done(run: Run, request: Request) -> bool:
    """Whether every instruction is answered."""
    asked = request.read()
    return len(_done(run, request, asked)) == len(asked)


def compare(first: Run, second: Run, request: Request) -> Path:
    """Write the completions of two runs as pairs, in the format of AlpacaEval's annotators, next to
    those of the first.
    """
    one, two = (
        read_completions(run, request.file(run))[: request.limit] for run in (first, second)
    )
    pairs = [
        {name: a[name] for name in ("instruction", "dataset")}
        | {f"{name}_1": a[name] for name in ("output", "generator")}
        | {f"{name}_2": b[name] for name in ("output", "generator")}
        for a, b in zip(one, two, strict=True)
    ]
    file = f"{request.file(first).removesuffix('.json')}-against-{second.label}.json"
    _write(first, file, pairs)
    return first.path / file


def read_completions(run: RunFolder, file: str) -> list[Completion]:
    """The completions of a file in a run folder; a DamagedFileError if they are not as they were
    written.
    """
    try:
        return list(json.loads(run.read(file)))
    except ValueError as error:
        raise run.damage(file, str(error)) from None


def _done(run: Run, request: Request, asked: Sequence[Instruction]) -> list[Completion]:
    """The completions that an earlier command wrote, in the order of the instructions."""
    file = request.file(run)
    if not (run.path / file).is_file():
        return []
    done = read_completions(run, file)[: len(asked)]
    if [one["instruction"] for one in done] != [one.shown for one in asked[: len(done)]]:
        raise UserError(
            f"{run.path / file}: contains completions of other instructions; delete it, or rename "
            "the instructions file"
        )
    return done


def _write_as_they_come(
    run: Run, file: str, done: list[Completion], batches: Iterable[list[Completion]]
) -> None:
    """Add the completions of each batch to the file: now and then, because each time it is written
    as a whole; and when the command is interrupted.
    """
    written, n_written = time.monotonic(), len(done)
    try:
        for new in batches:
            done += new
            if time.monotonic() - written > _INTERVAL:
                _write(run, file, done)
                written, n_written = time.monotonic(), len(done)
    finally:
        if len(done) > n_written:
            _write(run, file, done)


def _write(run: Run, file: str, completions: Sequence[Completion]) -> None:
    if not (run.path / file).is_file():
        run.delete(file)
    with run.replacing(file) as temporary:
        text = json.dumps(completions, indent=1, ensure_ascii=False)
        temporary.write_text(f"{text}\n", encoding="utf-8")


@dataclass(frozen=True)
class _Completing:
    """Answers some instructions, batch by batch."""

    asked: Sequence[Instruction]
    noise: NoiseSource
    decoding: Decoding
    generator: str

    @torch.no_grad()
    def __call__(self, layerwise: LayerwiseLosses, share: Share) -> Iterator[list[Completion]]:
        """The completions of each batch of one process."""
        model, task, how = layerwise.model, layerwise.task, self.decoding
        assert isinstance(model, Causal)
        assert isinstance(task, Alpaca)
        size = how.batch_size
        groups = [self.asked[start : start + size] for start in range(0, len(self.asked), size)]
        for asked in shared(groups, share):
            prompts = [_prompt(model, task, one, how.max_new_tokens) for one in asked]
            stream = NoiseStream(
                self.noise, how.gamma, [one.id for one in asked], [len(one) for one in prompts]
            )
            noisy = [model.lm.get_input_embeddings()] if how.gamma else []
            with hooked(noisy, lambda _, __, embeddings, noise=stream: noise(embeddings)):
                outputs = complete(model, task.tokenizer, prompts, how.max_new_tokens)
            yield [
                {
                    "instruction": one.shown,
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
    fitted = fitted_prompt(task.tokenizer, one.instruction, one.input, most)
    if fitted is None:
        raise UserError(
            f"--max-new-tokens {max_new_tokens}: leaves only {most} tokens of the context for "
            "the prompt; use fewer"
        )
    prompt, is_cut = fitted
    if is_cut:
        cut = f"instruction {int(one.id) + 1}: truncated to {most} tokens"
        warnings.warn(cut, DataWarning, stacklevel=2)
    return prompt


class NoiseStream:
    """Adds γ·σ_x·ε to token embeddings: first to the prompts, padded on the left, then to one new
    token at a time.
    """

    def __init__(
        self, noise: NoiseSource, gamma: float, ids: Sequence[str], lengths: Sequence[int]
    ) -> None:
        self._noise, self._gamma = noise, gamma
        self._generators = [example_generator(noise.seed, name) for name in ids]
        self._lengths: Sequence[int] | None = lengths

    def __call__(self, embeddings: Tensor) -> Tensor:
        new = self._lengths or [embeddings.shape[1]] * len(embeddings)
        self._lengths = None
        drawn, kind = torch.zeros(embeddings.shape), signal_noise(self._noise.kind)
        for row, (length, generator) in enumerate(zip(new, self._generators, strict=True)):
            drawn[row, -length:] = kind.standard((length, embeddings.shape[2]), generator)
        noise = sent(drawn.to(embeddings.dtype), embeddings.device)
        return embeddings + self._gamma * usable(self._noise.sigma_x) * noise


@torch.no_grad()
def complete(
    model: Causal, tokenizer: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[str]:
    """The model's completion of each prompt, by greedy decoding."""
    from transformers import GenerationConfig

    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    pad = pad if pad is not None else end or 0
    width, device = max(map(len, prompts)), next(model.parameters()).device
    lacking = [width - len(prompt) for prompt in prompts]
    tokens = [[pad] * n + [*prompt] for n, prompt in zip(lacking, prompts, strict=True)]
    mask = [[0] * n + [1] * (width - n) for n in lacking]
    config = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=end, pad_token_id=pad
    )
    written = model.lm.generate(
        input_ids=torch.tensor(tokens, device=device),
        attention_mask=torch.tensor(mask, device=device),
        generation_config=config,
    )
    texts = tokenizer.batch_decode(written[:, width:], skip_special_tokens=True)
    return [text.strip() for text in texts]
