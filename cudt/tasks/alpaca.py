"""Instruction tuning on Alpaca (Taori et al., 2023; `tatsu-lab/alpaca` on the hub) or your own file
of instructions.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from cudt.config import tasks as sections
from cudt.data import findings, text_checks, tokens
from cudt.data.dataset_status import DatasetStatus
from cudt.data.hub import DEFAULT_ROOT, load_tokenizer
from cudt.data.records import Columns, HubSet, Records, find_files, read_files
from cudt.data.splits import Split
from cudt.noise import TextNoise
from cudt.tasks.base import IGNORED
from cudt.tasks.prompts import Dialogue, fitted_dialogue
from cudt.tasks.token_task import TokenTask, flat
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.progress import track

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from cudt.data.batching import Batch

SOURCE = HubSet("tatsu-lab/alpaca")
COLUMNS = Columns(("instruction", "input", "output"), None, optional=("input",))
#: The file published by the authors, below the data root.
FILE = Path("alpaca/alpaca_data.json")
#: The id and texts (instruction, input, output) of each example, by split.
Splits = dict[Split, list[tuple[str, tuple[str, ...]]]]
Share = Annotated[float, Field(gt=0, lt=1)]


Config = sections.Alpaca


@dataclass(frozen=True)
class DialogueTokens:
    """One example: the tokens of prompt and response, and the index at which the response
    starts.
    """

    id: str
    tokens: np.ndarray[Any, Any]
    start: int


class Alpaca(TokenTask):
    """Instructions and responses: the label of a token is the next one, if that belongs to the
    response.
    """

    version = 1
    has_texts = True

    def __init__(self, read: Callable[[], Splits], tokenizer: Any, max_length: int) -> None:
        self._read = read
        self._tokens: dict[Split, list[DialogueTokens]] = {}
        self._notes: Counter[str] = Counter()
        self.tokenizer = tokenizer
        self.max_length = max_length

    @functools.cached_property
    def _texts(self) -> Splits:
        """Read on first use: a trained model answers instructions without them."""
        return self._read()

    def examples(self, split: Split) -> Sequence[DialogueTokens]:
        if split not in self._tokens:
            self._tokens[split] = self._tokenised(self._texts[split], split)
            self._check(split)
        return self._tokens[split]

    def corrupted(
        self, split: Split, noise: TextNoise, level: float, seed: int
    ) -> Sequence[DialogueTokens]:
        """The examples of a split with noise in instructions and inputs; responses are
        unchanged.
        """
        clean = self._texts[split]
        noisy = [noise.corrupt(texts[:-1], level, seed, name) for name, texts in clean]
        damaged = [
            (name, (*prompt, texts[-1])) for (name, texts), prompt in zip(clean, noisy, strict=True)
        ]
        return self._tokenised(damaged, f"{split} at {noise.scale.symbol} = {level:g}")

    def _check(self, split: Split) -> None:
        """Refuse a split of unknown words, and warn of other problems."""
        found = [
            text_checks.unknown(
                self.tokenizer, [example.tokens for example in self._tokens[split]], split
            )
        ]
        if split != "train":
            found.append(findings.leaked(self._sources(split), self._sources("train")))
        self._notes.update(findings.report(split, found))

    def _sources(self, split: Split) -> list[tuple[str, ...]]:
        return [texts for _, texts in self._texts[split]]

    def _tokenised(
        self, rows: Sequence[tuple[str, tuple[str, ...]]], what: str
    ) -> list[DialogueTokens]:
        """The examples that have a response; warns with the number of cut and skipped ones."""
        import numpy as np

        found, counts = [], Counter[str]()
        for name, texts in track(rows, len(rows), f"tokens of {what}"):
            dialogue = fitted_dialogue(self.tokenizer, texts, self.max_length)
            counts.update(_what_was_cut(dialogue))
            if dialogue is not None:
                tokens = np.asarray(dialogue.prompt.tokens + dialogue.response, np.int32)
                found.append(DialogueTokens(name, tokens, len(dialogue.prompt.tokens)))
        if counts:
            summary = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            warnings.warn(f"{what}, {len(rows)} examples: {summary}", DataWarning, stacklevel=2)
        if not found:
            raise UserError(
                f"task.max_length = {self.max_length}: none of {len(rows)} {what} examples has a "
                "response that fits; "
                "raise it, or check the outputs in the data"
            )
        self._notes.update({f"{what}: {name}": count for name, count in counts.items()})
        return found

    def notes(self) -> dict[str, int]:
        return dict(self._notes)

    def fingerprint(self, splits: Sequence[Split]) -> str:
        parts = [str(self.tokenizer.eos_token_id)]
        for rows in (self._texts[split] for split in splits):
            parts.append(tokens.key(self.tokenizer, [texts for _, texts in rows], self.max_length))
            parts += [name for name, _ in rows]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def length(self, example: DialogueTokens) -> int:
        return len(example.tokens)

    def collate(self, examples: Sequence[DialogueTokens]) -> Batch:
        """Each label is the next token if that belongs to the response, and IGNORED otherwise.

        `spans` are the first and last (exclusive) positions with a label, on the CPU.
        """
        import numpy as np
        import torch
        from torch.nn.utils.rnn import pad_sequence

        rows = [torch.from_numpy(example.tokens.astype(np.int64)) for example in examples]
        labels = []
        for example, row in zip(examples, rows, strict=True):
            following = torch.full_like(row, IGNORED)
            following[example.start - 1 : -1] = row[example.start :]
            labels.append(following)
        spans = [(example.start - 1, len(example.tokens) - 1) for example in examples]
        ends = torch.tensor([len(row) for row in rows])
        width = int(ends.max())
        pad = self.tokenizer.pad_token_id
        return {
            "input_ids": pad_sequence(
                rows, batch_first=True, padding_value=0 if pad is None else pad
            ),
            "attention_mask": (torch.arange(width) < ends.unsqueeze(1)).long(),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            "labelled": flat([torch.arange(*span) for span in spans], width),
            "spans": spans,
            "ids": [example.id for example in examples],
        }

    def label_positions(self, batch: Batch) -> Sequence[Tensor]:
        import torch

        return [torch.arange(*span) for span in batch["spans"]]

    def label_counts(self) -> Counter[int]:
        counts = Counter[int]()
        for example in self.examples("train"):
            counts.update(example.tokens[example.start :].tolist())
        return counts


def _what_was_cut(dialogue: Dialogue | None) -> list[str]:
    if dialogue is None:
        return ["skipped without a response"]
    cut = {"prompts cut": dialogue.prompt.is_cut, "responses cut": dialogue.response_is_cut}
    return [name for name, is_cut in cut.items() if is_cut]


def build(config: Config, data_root: Path | None, pretrained: str | None) -> Alpaca:
    """The task on your own file, `<data root>/alpaca/alpaca_data.json`, or the hub."""
    if pretrained is None:
        raise UserError(
            "task.name: alpaca needs a causal language model; set model.name to causal, and "
            "model.pretrained"
        )

    def read() -> Splits:
        records = _read(config, data_root)
        task.commit = records.commit
        return _split(config, records)

    task = Alpaca(read, load_tokenizer(pretrained, data_root), config.max_length)
    return task


def _read(config: Config, data_root: Path | None) -> Records:
    if config.file is not None:
        return read_files(find_files(config.file, data_root), COLUMNS)
    published, source = (data_root or DEFAULT_ROOT) / FILE, SOURCE.at(config.revision)
    if published.is_file():
        source.refuse_revision(published)
        return read_files([published], COLUMNS)
    return source.read("train", COLUMNS, data_root)


def _split(config: Config, records: Records) -> Splits:
    """The examples by split: `data_seed` draws those held out for test and validation, then limits
    apply.
    """
    import numpy as np

    order = np.random.default_rng(config.data_seed).permutation(len(records)).tolist()
    sizes: dict[Split, int] = {
        "test": round(config.test_share * len(records)),
        "validation": round(config.validation_share * len(records)),
    }
    sizes["train"] = len(records) - sum(sizes.values())
    splits: Splits = {}
    for split, size in sizes.items():
        if size < 1:
            raise UserError(
                f"{len(records)} instructions are too few: none is left for {split}; add some, "
                "or change the shares"
            )
        rows, order = order[:size], order[size:]
        splits[split] = [
            (f"{row}", records.texts[row]) for row in rows[: getattr(config.limit, split)]
        ]
    return splits


def datasets(data_root: Path | None) -> list[DatasetStatus]:
    published = (data_root or DEFAULT_ROOT) / FILE
    if published.is_file():
        return [DatasetStatus(SOURCE.repository, published.parent, {"train": FILE.name})]
    return [SOURCE.status(("train",), data_root)]
