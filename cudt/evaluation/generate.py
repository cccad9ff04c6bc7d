"""Completions under noise: `cudt generate` writes them in AlpacaEval's format, or prints those of
single prompts.

Noise is added to every token, including generated ones: their embeddings are perturbed like those
of the prompt. The noise of an instruction depends only on the noise seed and its row in the file,
and decoding is greedy, so that completions depend neither on the batch nor on where an interrupted
command resumes.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from transformers import GenerationConfig

from cudt.data.loader import n_batches
from cudt.data.text import Columns, read_files
from cudt.models.causal import Causal
from cudt.noise import NoiseSource, example_generator, noise_kind, usable
from cudt.runs.run import Run
from cudt.tasks.alpaca import Alpaca, prompt_tokens
from cudt.training.train import load, sigma_of
from cudt.utils.device import DeviceName, sent
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.text import Track

Completion = dict[str, str]
FOLDER = "extra/completions"
#: The keys of a completion in AlpacaEval's format.
_KEYS = ("instruction", "output", "generator", "dataset")
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


def check(run: Run) -> None:
    """Refuse a run that is not finished, or whose model does not generate text."""
    run.finished_info()
    model = run.recipe.settings.model
    if not model.generates_text:
        raise UserError(f"'{run.path}' has model {model.name}, which does not generate text")


def generate(
    run: Run,
    instructions: Path,
    how: Decoding,
    device: DeviceName,
    data_root: Path | None,
    track: Track,
    limit: int | None = None,
) -> Path:
    """Write completions of the first `limit` instructions of a file, or of all, into the run
    folder, after each batch; existing ones are kept. `check` the run first.
    """
    file, asked = file_of(run, instructions, how), _read(instructions, limit)
    done = _done(run, file, asked)
    if left := asked[len(done) :]:
        total, name = n_batches(left, how.batch_size), f"{run.recipe.name}-{run.label}"
        outputs = _outputs(run, left, how, device, data_root)
        for batch in track(outputs, total, f"{run.label} γ = {how.gamma:g}"):
            for one, output in batch:
                values = (one.shown, output, name, one.dataset)
                done.append(dict(zip(_KEYS, values, strict=True)))
            with run.replacing(file) as temporary:
                text = json.dumps(done, indent=1, ensure_ascii=False)
                temporary.write_text(f"{text}\n", encoding="utf-8")
    return run.path / file


def file_of(run: Run, instructions: Path, how: Decoding) -> str:
    """The file of a run's completions; its name says all that they depend on."""
    weights = "" if run.other_weights is None else f"-{run.weights}"
    settings = f"gamma{how.gamma:g}-seed{how.noise_seed}-tokens{how.max_new_tokens}"
    return f"{FOLDER}/{instructions.stem}-{settings}{weights}.json"


def answer(
    run: Run, prompts: Sequence[str], decoding: Decoding, device: DeviceName, data_root: Path | None
) -> list[str]:
    """The completion of each prompt, as of the same instructions in a file; writes nothing."""
    asked = [Instruction(str(row), prompt, "", "") for row, prompt in enumerate(prompts)]
    found = _outputs(run, asked, decoding, device, data_root)
    return [output for batch in found for _, output in batch]


def _read(instructions: Path, limit: int | None) -> list[Instruction]:
    """The instructions of a file, in order."""
    rows = read_files([instructions], _COLUMNS).texts[:limit]
    return [
        Instruction(str(row), asked, given, dataset or instructions.stem)
        for row, (asked, given, dataset) in enumerate(rows)
    ]


def _done(run: Run, file: str, asked: Sequence[Instruction]) -> list[Completion]:
    """The completions that an earlier command wrote, in the order of the instructions."""
    if not (run.path / file).is_file():
        return []
    done: list[Completion] = json.loads(run.read(file))[: len(asked)]
    if [one["instruction"] for one in done] != [one.shown for one in asked[: len(done)]]:
        raise UserError(
            f"{run.path / file}: contains completions of other instructions; delete it, or rename "
            "the instructions file"
        )
    return done


def _outputs(
    run: Run,
    asked: Sequence[Instruction],
    how: Decoding,
    device: DeviceName,
    data_root: Path | None,
) -> Iterator[list[tuple[Instruction, str]]]:
    """The instructions of each batch with their completions."""
    layerwise = load(run, device, data_root)
    model, task, size = layerwise.model, layerwise.task, how.batch_size
    assert isinstance(model, Causal)
    assert isinstance(task, Alpaca)
    noise = NoiseSource("gaussian", sigma_of(run, layerwise), how.noise_seed)
    for start in range(0, len(asked), size):
        mine = asked[start : start + size]
        prompts = [_prompt(model, task, one, how.max_new_tokens) for one in mine]
        stream = NoiseStream(noise, how.gamma, [one.id for one in mine], [*map(len, prompts)])
        with stream.noise_on(model) if how.gamma else contextlib.nullcontext():
            outputs = complete(model, task.tokenizer, prompts, how.max_new_tokens)
        yield [*zip(mine, outputs, strict=True)]


def _prompt(model: Causal, task: Alpaca, one: Instruction, max_new_tokens: int) -> list[int]:
    """The tokens of one prompt, truncated if prompt and completion do not fit into the model's
    context.
    """
    most = (model.context_length or sys.maxsize) - max_new_tokens
    prompt, is_cut = prompt_tokens(task.tokenizer, one.instruction, one.input, most)
    if not prompt:
        raise UserError(f"--max-new-tokens {max_new_tokens}: leaves {most} tokens for the prompt")
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

    def noise_on(self, model: Causal) -> RemovableHandle:
        """Add the noise to what the model reads, inside a `with` block."""
        words = model.lm.get_input_embeddings()
        return words.register_forward_hook(lambda _, __, embeddings: self(embeddings))

    def __call__(self, embeddings: Tensor) -> Tensor:
        new = self._lengths or [embeddings.shape[1]] * len(embeddings)
        self._lengths = None
        drawn, kind = torch.zeros(embeddings.shape), noise_kind(self._noise.kind)
        for row, (length, generator) in enumerate(zip(new, self._generators, strict=True)):
            drawn[row, -length:] = kind.standard((length, embeddings.shape[2]), generator)
        noise = sent(drawn.to(embeddings.dtype), embeddings.device)
        return embeddings + self._gamma * usable(self._noise.sigma_x) * noise


@torch.no_grad()
def complete(
    model: Causal, tokenizer: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[str]:
    """The model's completion of each prompt, by greedy decoding."""
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
