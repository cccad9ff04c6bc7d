"""Text classification: records are split, tokenized and batched. Text tasks differ only in where
records come from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from cudt.config import tasks as sections
from cudt.config.tasks import LossName
from cudt.data import findings, text_checks, tokens
from cudt.data.hub import load_tokenizer
from cudt.data.records import Label, Records
from cudt.data.splits import SEEN, SPLITS, OnDemand, Split
from cudt.noise import TextNoise
from cudt.tasks.base import IGNORED, Task
from cudt.tasks.classification import Classification
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from cudt.data.batching import Batch

Length = Annotated[int, Field(ge=4)]
#: The default maximum length, since the cost of attention grows with the square of the length.
_LONG = 512


TextConfig = sections.TextSection


@dataclass(frozen=True)
class Text:
    """One example before tokenization."""

    id: str
    texts: tuple[str, ...]
    label: int


@dataclass(frozen=True)
class Tokens:
    """One tokenized example: `input_ids`, and whatever else its tokenizer returns for each
    position.
    """

    id: str
    inputs: dict[str, np.ndarray[Any, Any]]
    label: int

    @property
    def length(self) -> int:
        return len(self.inputs["input_ids"])


class TextClassification(Classification):
    """One or two texts and a class."""

    version = 1
    has_texts = True

    def __init__(
        self,
        splits: Mapping[Split, list[Text]],
        classes: Sequence[Label],
        tokenizer: Any,
        max_length: int,
        loss: LossName = "cross_entropy",
    ):
        self._texts = splits
        self.loss = loss
        self._tokens: dict[Split, list[Tokens]] = {}
        self._notes: dict[str, int] = {}
        self.tokenizer = tokenizer
        self.classes = list(classes)
        self.n_classes = len(self.classes)
        self.max_length = max_length
        self.vocabulary_size = len(tokenizer)

    @property
    def has_pairs(self) -> bool:
        """Whether an example is a pair of texts."""
        return len(self._texts["train"][0].texts) == 2

    def examples(self, split: Split) -> Sequence[Tokens]:
        if split not in self._tokens:
            self._tokens[split] = self._tokenised(self._texts[split])
            self._check(split)
        return self._tokens[split]

    def corrupted(
        self, split: Split, noise: TextNoise, level: float, seed: int
    ) -> Sequence[Tokens]:
        """The examples of a split with noise in their texts."""
        clean = self._texts[split]
        noisy = [noise.corrupt(text.texts, level, seed, text.id) for text in clean]
        damaged = [
            Text(text.id, texts, text.label) for text, texts in zip(clean, noisy, strict=True)
        ]
        return self._tokenised(damaged)

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[Tokens]:
        expected = len(self._texts["train"][0].texts)
        for index, parts in enumerate(texts):
            if len(parts) != expected:
                raise UserError(
                    f"text {index}: expected {expected} text(s), as in the training data, got "
                    f"{len(parts)}"
                )
        new = [Text(str(index), parts, IGNORED) for index, parts in enumerate(texts)]
        return self._tokenised(new) if new else []

    def tested_on(self, other: Task) -> TextClassification:
        if not isinstance(other, TextClassification):
            raise UserError(
                "texts with classes can only be tested on other texts with classes; name such a "
                "task"
            )
        if other.classes != self.classes:
            mine, theirs = (", ".join(map(repr, one.classes[:20])) for one in (self, other))
            raise UserError(
                f"the other data have the classes {theirs}, the run has {mine}; name data with "
                "its classes"
            )
        if other.has_pairs != self.has_pairs:
            mine, theirs = (
                "pairs of texts" if one.has_pairs else "single texts" for one in (self, other)
            )
            raise UserError(
                f"the other data are {theirs}, the run was trained on {mine}; name data of the "
                "same kind"
            )
        splits = OnDemand(SPLITS, lambda split: (other if split == "test" else self)._texts[split])
        return TextClassification(splits, self.classes, self.tokenizer, self.max_length, self.loss)

    def notes(self) -> dict[str, int]:
        return dict(self._notes)

    def _check(self, split: Split) -> None:
        """Refuse a split of unknown words, and warn of other problems."""
        rows = [example.inputs["input_ids"] for example in self._tokens[split]]
        found = [text_checks.unknown(self.tokenizer, rows, split)]
        if split != "train":
            found.append(findings.leaked(self._sources(split), self._sources("train")))
        self._notes |= findings.report(split, found)

    def _sources(self, split: Split) -> list[tuple[str, ...]]:
        return [text.texts for text in self._texts[split]]

    def fingerprint(self, splits: Sequence[Split]) -> str:
        parts = []
        for texts in (self._texts[split] for split in splits):
            parts.append(
                tokens.key(self.tokenizer, [text.texts for text in texts], self.max_length)
            )
            parts += [f"{text.id} {text.label}" for text in texts]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def length(self, example: Tokens) -> int:
        return example.length

    def train_labels(self) -> Sequence[int]:
        return [text.label for text in self._texts["train"]]

    def collate(self, examples: Sequence[Tokens]) -> Batch:
        import numpy as np
        import torch

        length = max(example.length for example in examples)
        batch: Batch = {}
        for name in examples[0].inputs:
            fill = (self.tokenizer.pad_token_id or 0) if name == "input_ids" else 0
            rows = [_padded(example.inputs[name], length, fill) for example in examples]
            batch[name] = torch.from_numpy(np.stack(rows))
        lengths = torch.tensor([example.length for example in examples])
        batch["attention_mask"] = (torch.arange(length) < lengths.unsqueeze(1)).long()
        batch["labels"] = torch.tensor([example.label for example in examples])
        batch["ids"] = [example.id for example in examples]
        return batch

    def _tokenised(self, texts: Sequence[Text]) -> list[Tokens]:
        rows = tokens.tokenise(self.tokenizer, [text.texts for text in texts], self.max_length)
        return [
            Tokens(text.id, inputs, text.label) for text, inputs in zip(texts, rows, strict=True)
        ]


def _padded(values: np.ndarray[Any, Any], length: int, fill: int) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.pad(values.astype(np.int64), (0, length - len(values)), constant_values=fill)


def build_text_task(
    config: TextConfig,
    read: Callable[[str], Records],
    names: dict[Split, str],
    data_root: Path | None,
    pretrained: str | None,
) -> TextClassification:
    """The task on some records; `names` are the source's names of train, test and, if it has one,
    validation.
    """
    records = OnDemand(names, lambda split: _not_empty(read(names[split]), names[split]))
    classes = _classes(records["train"])

    def texts(split: Split) -> list[Text]:
        source: Split = split if split in names else "train"
        rows = _rows(config, split, len(records[source]), from_train="validation" not in names)
        return _texts(records[source], rows, classes, names[source])

    splits = OnDemand(SPLITS, texts)
    # Read these now, so that errors in them are reported first.
    for split in SEEN:
        splits[split]
    _check_labels(splits["train"], classes)
    if pretrained is None:
        raise UserError(
            f"task.name: {config.name} has texts, but the model has no tokenizer; "
            "set model.pretrained (encoder) or model.embeddings_from (unrolled)"
        )
    tokenizer = load_tokenizer(pretrained, data_root)
    most = tokenizer.model_max_length
    if config.max_length is not None and config.max_length > most:
        raise UserError(
            f"task.max_length = {config.max_length}: '{pretrained}' reads at most {most} tokens; "
            "lower it"
        )
    task = TextClassification(
        splits, classes, tokenizer, config.max_length or min(most, _LONG), config.loss
    )
    task.commit = records["train"].commit
    return task


def _not_empty(records: Records, name: str) -> Records:
    if not len(records):
        raise UserError(
            f"{', '.join(source for source, _ in records.sources)}: no examples in split "
            f"'{name}'; add some"
        )
    return records


def _classes(train: Records) -> list[Label]:
    classes = sorted(set(train.labels), key=lambda label: (isinstance(label, str), label))
    if len(classes) < 2:
        raise UserError(
            f"{train.sources[0][0]}: every example has the label {classes[0]!r}; at least two "
            "labels are needed"
        )
    return classes


def _check_labels(train: Sequence[Text], classes: Sequence[Label]) -> None:
    """Refuse training examples of one class, which a small limit can leave of several."""
    if len({text.label for text in train}) < 2:
        raise UserError(
            f"train data: all {len(train)} examples have the label {classes[train[0].label]!r}; "
            "raise "
            "task.limit.train, or add examples of other labels"
        )


def _rows(config: TextConfig, split: Split, size: int, *, from_train: bool) -> np.ndarray[Any, Any]:
    """The rows of a split in random order, limited; validation is part of train unless it has its
    own records.
    """
    import numpy as np

    rows = np.random.default_rng(config.data_seed).permutation(size)
    if from_train and split != "test":
        held_out = round(config.validation_share * size)
        if not 0 < held_out < size:
            raise UserError(
                f"task.validation_share = {config.validation_share:g}: leaves no example for "
                "validation or training "
                f"of {size} examples; change it or add examples"
            )
        rows = rows[:held_out] if split == "validation" else rows[held_out:]
    return rows[: getattr(config.limit, split)]


def _texts(
    records: Records, rows: np.ndarray[Any, Any], classes: Sequence[Label], name: str
) -> list[Text]:
    index = {label: number for number, label in enumerate(classes)}
    texts = []
    for row in rows:
        label = records.labels[row]
        if label not in index:
            known = ", ".join(repr(one) for one in classes[:20])
            raise UserError(
                f"{records.where(row)}: label {label!r} does not occur in the training data; "
                f"expected one of {known}"
            )
        texts.append(Text(f"{name}-{row}", records.texts[row], index[label]))
    return texts
