"""Instruction tuning on Alpaca (Taori et al., 2023; `tatsu-lab/alpaca` on the hub) or your own file
of instructions: the label of a token is the next one, if that belongs to the response.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
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
from cudt.data import text as data
from cudt.data.hub import DEFAULT_ROOT, Status, load_tokenizer
from cudt.data.loader import Batch
from cudt.data.text import Columns, HubSet, Records
from cudt.noise import TextNoise, example_seed
from cudt.tasks.base import IGNORED, Split, Task, leaked
from cudt.utils.device import sent
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.text import track

SOURCE = HubSet("tatsu-lab/alpaca")
COLUMNS = Columns(("instruction", "input", "output"), optional=("input",))
#: The file published by the authors, below the data root.
FILE = Path("alpaca/alpaca_data.json")
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
#: The id and texts (instruction, input, output) of an example.
Row = tuple[str, tuple[str, ...]]


def prompt_text(instruction: str, given: str) -> str:
    """The template with an instruction and, if there is one, its input."""
    template = _WITH_INPUT if given.strip() else _PLAIN
    return template.format(instruction=instruction, input=given)


def fitted_prompt(
    tokenizer: Any, instruction: str, given: str, most: int
) -> tuple[list[int], bool] | None:
    """The tokens of a prompt, at most `most`, and whether it was cut; None if the template alone
    has more.

    The template is never cut, because its end asks the model to respond. The input is cut at its
    end; if that is not enough, so is the instruction.
    """

    def tokens(*texts: str) -> list[int]:
        found: list[int] = tokenizer(prompt_text(*texts))["input_ids"]
        # Some tokenizers end every text with an end token, but here the response follows.
        return found[:-1] if found and found[-1] == tokenizer.eos_token_id else found

    def longest(text: str, prompt: Callable[[str], list[int]]) -> tuple[list[int], bool] | None:
        """The prompt with the longest prefix of a text that fits; None if none does."""
        ends = range(len(text) + 1)
        fits = bisect.bisect_right(ends, most, key=lambda end: len(prompt(text[:end])))
        return (prompt(text[: fits - 1]), True) if fits else None

    whole = tokens(instruction, given)
    if len(whole) <= most:
        return whole, False
    with_input = longest(given, lambda start: tokens(instruction, start))
    return with_input or longest(instruction, lambda start: tokens(start, ""))


@dataclass(frozen=True)
class DialogueTokens:
    """One example: the tokens of prompt and response, and the index at which the response
    starts.
    """

    id: str
    tokens: np.ndarray[Any, Any]
    start: int


class Alpaca(Task):
    """f is the cross-entropy of the labels, averaged over an example's tokens; the metric is the
    share of tokens that is right.

    Examples are weighted by their number of labels, so f_l is the mean over all of them.
    """

    version = 1
    metric_name = "token_accuracy"
    higher_is_better = True
    has_texts = True
    has_token_answers = True

    def __init__(
        self, read: Callable[[], dict[Split, list[Row]]], tokenizer: Any, max_length: int
    ) -> None:
        # Read on first use: a trained model answers instructions without them.
        self._texts = functools.cache(read)
        self._tokens: dict[Split, list[DialogueTokens]] = {}
        self.tokenizer = tokenizer
        self.max_length = max_length

    def examples(self, split: Split) -> Sequence[DialogueTokens]:
        if split not in self._tokens:
            self._tokens[split] = found = self._tokenised(self._texts()[split], split)
            rows = [example.tokens for example in found]
            self._notes |= data.unknown_words(self.tokenizer, rows, split)
            if split != "train":
                own, train = ([row[1] for row in self._texts()[one]] for one in (split, "train"))
                self._notes |= leaked(split, own, train)
        return self._tokens[split]

    def corrupted(
        self, split: Split, noise: TextNoise, level: float, seed: int
    ) -> Sequence[DialogueTokens]:
        """The examples of a split with noise in instructions and inputs; responses are
        unchanged.
        """
        rows = [
            (name, (*noise.corrupt(texts[:-1], level, seed, name), texts[-1]))
            for name, texts in self._texts()[split]
        ]
        return self._tokenised(rows, f"{split} at {noise.scale.symbol} = {level:g}")

    def _tokenised(self, rows: Sequence[Row], what: str) -> list[DialogueTokens]:
        """The examples that have a response; warns with the number of cut and skipped ones."""
        found, counts = [], Counter[str]()
        for name, texts in track(rows, len(rows), f"tokens of {what}"):
            example, cut = self._dialogue(name, texts)
            counts.update(cut)
            if example is not None:
                found.append(example)
        if counts:
            summary = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            warnings.warn(f"{what}, {len(rows)} examples: {summary}", DataWarning, stacklevel=2)
        if not found:
            raise UserError(
                f"task.max_length = {self.max_length}: none of {len(rows)} {what} examples has a "
                "response that fits; raise it, or check the outputs in the data"
            )
        self._notes |= {f"{what}: {name}": count for name, count in counts.items()}
        return found

    def _dialogue(self, name: str, texts: Sequence[str]) -> tuple[DialogueTokens | None, list[str]]:
        """Prompt and response in at most `max_length` tokens, and what was cut; None if there is no
        response, or no room for it.

        The response ends with the tokenizer's end token, unless it is cut. If both are too long
        together, the response is cut at its end, but keeps at least a quarter of the length (or all
        it has); the prompt is cut to make room for it.
        """
        instruction, given, output = texts
        response: list[int] = self.tokenizer(output, add_special_tokens=False)["input_ids"]
        if not output.strip() or not response:
            return None, ["skipped without a response"]
        if self.tokenizer.eos_token_id is not None:
            response = [*response, self.tokenizer.eos_token_id]
        most = self.max_length - min(len(response), self.max_length // _LEAST_RESPONSE)
        fitted = fitted_prompt(self.tokenizer, instruction, given, most)
        if fitted is None:
            return None, ["skipped without a response"]
        prompt, is_cut = fitted
        room = self.max_length - len(prompt)
        cut = {"prompts cut": is_cut, "responses cut": len(response) > room}
        tokens = np.asarray(prompt + response[:room], np.int32)
        return DialogueTokens(name, tokens, len(prompt)), [one for one in cut if cut[one]]

    def fingerprint(self, splits: Sequence[Split]) -> str:
        parts = [str(self.tokenizer.eos_token_id)]
        for rows in (self._texts()[split] for split in splits):
            texts = [texts for _, texts in rows]
            parts += [data.digest_of(self.tokenizer, texts, self.max_length)]
            parts += [name for name, _ in rows]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def length(self, example: DialogueTokens) -> int:
        return len(example.tokens)

    def collate(self, examples: Sequence[DialogueTokens]) -> Batch:
        """Each label is the next token if that belongs to the response, and IGNORED otherwise.

        `spans` are the first and last (exclusive) positions with a label, on the CPU.
        """
        rows = [torch.from_numpy(example.tokens.astype(np.int64)) for example in examples]
        spans = [(one.start - 1, len(one.tokens) - 1) for one in examples]
        ends = torch.tensor([len(row) for row in rows])
        width = int(ends.max())
        labels = torch.full((len(rows), width), IGNORED)
        for own, row, (first, last) in zip(labels, rows, spans, strict=True):
            own[first:last] = row[first + 1 :]
        return {
            "input_ids": pad_sequence(
                rows, batch_first=True, padding_value=self.tokenizer.pad_token_id or 0
            ),
            "attention_mask": (torch.arange(width) < ends.unsqueeze(1)).long(),
            "labels": labels,
            "labelled": _flat([torch.arange(*span) for span in spans], width),
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
    """The task on your own file, `<data root>/alpaca/alpaca_data.json`, or the hub."""
    if pretrained is None:
        raise UserError(
            "task.name: alpaca needs a causal language model; set model.name to causal, and "
            "model.pretrained"
        )

    def read() -> dict[Split, list[Row]]:
        records = _records(config, data_root)
        task.commit = records.commit
        return _split(config, records)

    task = Alpaca(read, load_tokenizer(pretrained, data_root), config.max_length)
    return task


def _records(config: sections.Alpaca, data_root: Path | None) -> Records:
    if config.file is not None:
        return data.read_files(data.find_files(config.file, data_root), COLUMNS)
    source = dataclasses.replace(SOURCE, revision=config.revision)
    published = (data_root or DEFAULT_ROOT) / FILE
    if published.is_file():
        source.refuse_revision(published)
        return data.read_files([published], COLUMNS)
    return source.read("train", COLUMNS, data_root)


def _split(config: sections.Alpaca, records: Records) -> dict[Split, list[Row]]:
    """The examples by split: `data_seed` draws those held out for test and validation, then limits
    apply.
    """
    count = len(records.texts)
    order = np.random.default_rng(config.data_seed).permutation(count).tolist()
    n_test, n_validation = round(config.test_share * count), round(config.validation_share * count)
    rows: dict[Split, list[int]] = {
        "test": order[:n_test],
        "validation": order[n_test : n_test + n_validation],
        "train": order[n_test + n_validation :],
    }
    if not all(rows.values()):
        raise UserError(
            f"{records.source}: {count} instructions are too few for three splits; add some, or "
            "change the shares"
        )
    return {
        split: [(str(row), records.texts[row]) for row in own[: getattr(config.limit, split)]]
        for split, own in rows.items()
    }


def status(config: sections.Alpaca, data_root: Path | None) -> Status | None:
    """What is here of Alpaca; None for your own file."""
    file = (data_root or DEFAULT_ROOT) / FILE
    if config.file is not None:
        return None
    if file.is_file():
        return Status(SOURCE.repository, file.parent, {"train": FILE.name}, "")
    return SOURCE.status(["train"], data_root)
