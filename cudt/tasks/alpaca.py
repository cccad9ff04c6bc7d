"""Instruction tuning on Alpaca (Taori et al., 2023; `tatsu-lab/alpaca` on the hub) or your own file
of instructions: the label of a token is the next one, if that belongs to the response.
"""

from __future__ import annotations

import bisect
import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cudt.config import tasks as sections
from cudt.data.hub import DEFAULT_ROOT, load_tokenizer
from cudt.data.loader import Batch
from cudt.data.text import Columns, Source
from cudt.noise import example_seed
from cudt.tasks.base import IGNORED, Split
from cudt.tasks.text import Row, TextTask
from cudt.utils.device import sent
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.text import track

REPOSITORY = "tatsu-lab/alpaca"
COLUMNS = Columns(("instruction", "input", "output"), optional=("input",))
#: The file published by the authors, below the data root.
FILE = "alpaca/alpaca_data.json"
#: The template of Alpaca; with an input, the second one.
_PLAIN = (
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:\n"
)
_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
#: A response keeps at least `max_length` divided by this, even if its prompt is too long.
_LEAST_RESPONSE = 4


def prompt_text(instruction: str, given: str) -> str:
    """The template with an instruction and, if there is one, its input."""
    template = _WITH_INPUT if given.strip() else _PLAIN
    return template.format(instruction=instruction, input=given)


def prompt_tokens(
    tokenizer: Any, instruction: str, given: str, most: int
) -> tuple[list[int], bool]:
    """The tokens of a prompt, at most `most`, and whether it was cut; no tokens if the template
    alone has more.

    The template is never cut, because its end asks the model to respond. The input is cut at its
    end; if that is not enough, so is the instruction.
    """

    def tokens(*texts: str) -> list[int]:
        found: list[int] = tokenizer(prompt_text(*texts))["input_ids"]
        # Some tokenizers end every text with an end token, but here the response follows.
        return found[:-1] if found and found[-1] == tokenizer.eos_token_id else found

    def longest(text: str, prompt: Callable[[str], list[int]]) -> list[int]:
        """The prompt with the longest prefix of a text that fits; empty if none does."""
        ends = range(len(text) + 1)
        fits = bisect.bisect_right(ends, most, key=lambda end: len(prompt(text[:end])))
        return prompt(text[: fits - 1]) if fits else []

    whole = tokens(instruction, given)
    if len(whole) <= most:
        return whole, False
    with_input = longest(given, lambda start: tokens(instruction, start))
    return with_input or longest(instruction, lambda start: tokens(start, "")), True


@dataclass(frozen=True)
class Dialogue:
    """One example: the tokens of prompt and response, and the index at which the response
    starts.
    """

    id: str
    tokens: np.ndarray[Any, Any]
    start: int
    is_cut: bool = False


class Alpaca(TextTask):
    """f is the cross-entropy of the labels, averaged over an example's tokens; the metric is the
    share of tokens that is right.

    Examples are weighted by their number of labels, so f_l is the mean over all of them.
    """

    metric_name = "token_accuracy"
    higher_is_better = True

    def tokenised(self, rows: Sequence[Row]) -> list[Dialogue]:
        """The examples that have a response; warns of those that are cut or skipped."""
        tracked = track(rows, len(rows), "tokens of instructions")
        found = [one for one in map(self._dialogue, tracked) if one.start < len(one.tokens)]
        cut, skipped = sum(one.is_cut for one in found), len(rows) - len(found)
        if skipped or cut:
            message = f"{len(rows)} instructions: {cut} cut, {skipped} skipped without a response"
            warnings.warn(f"{message} in task.max_length", DataWarning, stacklevel=2)
        if not found:
            raise UserError(
                f"task.max_length = {self.max_length}: none of {len(rows)} instructions has a "
                "response that fits; raise it, or check the outputs in the data"
            )
        return found

    def _dialogue(self, row: Row) -> Dialogue:
        """Prompt and response in at most `max_length` tokens; no tokens if there is no response, or
        no room for the prompt.

        The response ends with the tokenizer's end token, unless it is cut. If both are too long
        together, the response is cut at its end, but keeps at least a quarter of the length (or all
        it has); the prompt is cut to make room for it.
        """
        response: list[int] = self.tokenizer(row.label, add_special_tokens=False)["input_ids"]
        nothing = Dialogue(row.id, np.empty(0, np.int32), 0)
        if not row.label.strip() or not response:
            return nothing
        if self.tokenizer.eos_token_id is not None:
            response = [*response, self.tokenizer.eos_token_id]
        most = self.max_length - min(len(response), self.max_length // _LEAST_RESPONSE)
        prompt, is_cut = prompt_tokens(self.tokenizer, row.texts[0], row.texts[1], most)
        if not prompt:
            return nothing
        room = self.max_length - len(prompt)
        tokens = np.asarray(prompt + response[:room], np.int32)
        return Dialogue(row.id, tokens, len(prompt), is_cut or len(response) > room)

    def length(self, example: Dialogue) -> int:
        return len(example.tokens)

    def collate(self, examples: Sequence[Dialogue]) -> Batch:
        """Each label is the next token if that belongs to the response, and IGNORED otherwise.

        `spans` are the first and last (exclusive) positions with a label, on the CPU.
        """
        rows = [torch.from_numpy(example.tokens.astype(np.int64)) for example in examples]
        spans = [(one.start - 1, len(one.tokens) - 1) for one in examples]
        fill = self.tokenizer.pad_token_id or 0
        tokens = pad_sequence(rows, batch_first=True, padding_value=fill)
        labels = torch.full_like(tokens, IGNORED)
        for own, row, (first, last) in zip(labels, rows, spans, strict=True):
            own[first:last] = row[first + 1 :]
        return {
            "input_ids": tokens,
            "attention_mask": pad_sequence(
                [torch.ones_like(row) for row in rows], batch_first=True
            ),
            "labels": labels,
            "labelled": _flat([torch.arange(*span) for span in spans], tokens.shape[1]),
            "spans": spans,
            "ids": [example.id for example in examples],
        }

    def thinned(self, batch: Batch, count: int, seed: int | str) -> Batch:
        chosen, labels = [], batch["labels"]
        for name, span in zip(batch["ids"], batch["spans"], strict=True):
            # Drawn on the CPU, so that no device waits.
            generator = torch.Generator().manual_seed(example_seed(f"{seed} tokens", name))
            own, order = torch.arange(*span), torch.randperm(span[1] - span[0], generator=generator)
            chosen.append(own[order[:count].sort().values])
        labelled = sent(_flat(chosen, labels.shape[1]), labels.device)
        kept = torch.full_like(labels, IGNORED)
        kept.view(-1).index_copy_(0, labelled, labels.flatten()[labelled])
        return {**batch, "labels": kept, "labelled": labelled}

    def weights(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED).sum(1).float()

    def losses(self, answer: Any, batch: Batch) -> Tensor:
        losses: Tensor = answer.mean_losses(batch)
        return losses

    def scores(self, answer: Any, batch: Batch) -> Tensor:
        return self.judge(answer, batch)[1]

    def judge(self, answer: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        judged: tuple[Tensor, Tensor] = answer.judge(batch)
        return judged

    def reference_loss(self) -> float:
        """The entropy of the labels, −Σ p_w·log p_w: the best loss of a model that ignores its
        input.
        """
        counts = Counter[int]()
        for example in self.examples("train"):
            counts.update(example.tokens[example.start :].tolist())
        total = counts.total()
        return -sum(count / total * math.log(count / total) for count in counts.values())


def _flat(positions: Sequence[Tensor], width: int) -> Tensor:
    """The positions of tokens in each example, as indices of the flattened batch."""
    return torch.cat([row * width + own for row, own in enumerate(positions)])


def build(config: sections.Alpaca, data_root: Path | None, pretrained: str | None) -> Alpaca:
    """The task: `data_seed` draws what is held out for test and validation, then limits apply."""

    @functools.cache
    def drawn() -> list[Row]:
        source, name = _source(config, data_root)
        texts = source.read(name, COLUMNS, data_root).texts
        order = np.random.default_rng(config.data_seed).permutation(len(texts)).tolist()
        return [Row(str(row), texts[row][:2], texts[row][2]) for row in order]

    def rows(split: Split) -> list[Row]:
        every = drawn()
        n_test = round(config.test_share * len(every))
        end = n_test + round(config.validation_share * len(every))
        if not 0 < n_test < end < len(every):
            raise UserError(
                "task.validation_share, task.test_share: "
                f"{len(every)} instructions are too few for three splits of these shares"
            )
        parts = {"test": every[:n_test], "validation": every[n_test:end], "train": every[end:]}
        return parts[split][: getattr(config.limit, split)]

    return Alpaca(rows, load_tokenizer(pretrained, data_root), config.max_length)


def _source(config: sections.Alpaca, data_root: Path | None) -> tuple[Source, str]:
    """Your own file, the published one below the data root, or the dataset of the hub."""
    if config.file is not None:
        return Source(), config.file
    if config.revision is None and ((data_root or DEFAULT_ROOT) / FILE).is_file():
        return Source(), FILE
    return Source(REPOSITORY, revision=config.revision), "train"


def find(config: sections.Alpaca, data_root: Path | None) -> None:
    """Refuse instructions that are not here."""
    source, name = _source(config, data_root)
    source.find(name, data_root)
