"""Text classification: IMDb (Maas et al., 2011), MNLI (Williams et al., 2018), and your own texts
in files or on the hub; and what every task with classes, and every task with texts, shares.

With K classes, probabilities p and the true class c, the loss f is one of

    cross_entropy           −log p_c, without bound
    brier                   Σ_k (p_k − [k = c])², in [0, 2]
    clipped_cross_entropy   −log max(p_c, p_min), in [0, log 1/p_min], with p_min = 1/(100·K)

p_min is a hundredth of the probability of guessing. An example whose true class gets less has the
largest loss and no gradient.
"""

from __future__ import annotations

import functools
import hashlib
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cudt.config.tasks import LossName, Text, TextSection
from cudt.data.hub import load_tokenizer
from cudt.data.loader import Batch
from cudt.data.text import Columns, Label, Records, Source
from cudt.noise import TextNoise
from cudt.tasks.base import IGNORED, SPLITS, Split, Task, warn_of_leaks
from cudt.utils.errors import UserError

#: The keys of task `text` that make it a published dataset, by the name of its task.
PUBLISHED: dict[str, dict[str, Any]] = {
    "imdb": {"hub": "stanfordnlp/imdb", "subset": "plain_text", "text": "text"},
    "mnli": {"hub": "nyu-mll/glue", "subset": "mnli", "text": ["premise", "hypothesis"]},
}
#: The default maximum length, since the cost of attention grows with the square of the length.
_LONG = 512


def class_losses(loss: LossName, logits: Tensor, labels: Tensor) -> Tensor:
    """f for each example, from logits (examples, classes) and labels."""
    if loss == "brier":
        return (logits.softmax(-1) - F.one_hot(labels, logits.shape[-1])).square().sum(-1)
    losses = F.cross_entropy(logits, labels, reduction="none")
    return losses if loss == "cross_entropy" else losses.clamp_max(math.log(100 * logits.shape[-1]))


def loss_of_guessing(loss: LossName, shares: Sequence[float]) -> float:
    """The least mean loss of one answer for all examples, from the shares s of all K classes.

    The best answer is the shares themselves: −Σ s_c·log s_c, or 1 − Σ s_c² for brier. A clipped
    loss is least if the answer gives the n rarest classes nothing, for the best n.
    """
    if loss == "brier":
        return 1 - sum(share**2 for share in shares)
    if loss == "cross_entropy":
        return _entropy(shares)
    bound, ordered = math.log(100 * len(shares)), sorted(shares)
    return min(sum(ordered[:n]) * bound + _entropy(ordered[n:]) for n in range(len(shares)))


def _entropy(shares: Sequence[float]) -> float:
    """−Σ s_c·log (s_c / Σ s)."""
    total = math.fsum(shares)
    return -sum(share * math.log(share / total) for share in shares if share)


class Classification(Task):
    """f is a loss of the class probabilities; the metric is the accuracy of the most likely class.
    Examples have a `label`, the number of their class.
    """

    metric_name = "accuracy"
    higher_is_better = True
    scores_are_shares = True
    loss: LossName = "cross_entropy"
    """f: the recipe's `task.loss`."""
    classes: Sequence[Label]
    """What the data call the classes, in the order of the answers."""

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        return class_losses(self.loss, answer, batch["labels"])

    def scores(self, answer: Tensor, batch: Batch) -> Tensor:
        return (answer.argmax(-1) == batch["labels"]).to(answer.dtype)

    def probabilities(self, answer: Tensor) -> Tensor:
        """The probability of each class, (examples, classes)."""
        return answer.softmax(-1)

    def reference_loss(self) -> float:
        """The least loss of a classifier that ignores its input."""
        counts = Counter(example.label for example in self.examples("train"))
        shares = [count / counts.total() for count in counts.values()]
        return loss_of_guessing(self.loss, [*shares, *[0.0] * (self.n_classes - len(shares))])


@dataclass(frozen=True)
class Row:
    """One example before tokenisation; `label` is its class or, of an instruction, the response."""

    id: str
    texts: tuple[str, ...]
    label: Any


class TextTask(Task):
    """A task whose examples are texts for the tokenizer of a pretrained model."""

    has_texts = True

    def __init__(self, rows: Callable[[Split], list[Row]], tokenizer: Any, max_length: int) -> None:
        # Read on first use: a trained model answers new texts without them.
        self.rows = functools.cache(rows)
        self._examples: dict[Split, list[Any]] = {}
        self.tokenizer = tokenizer
        self.max_length = max_length

    @abstractmethod
    def tokenised(self, rows: Sequence[Row]) -> list[Any]:
        """The examples of some rows."""

    def examples(self, split: Split) -> Sequence[Any]:
        if split not in self._examples:
            self._examples[split] = self.tokenised(self.rows(split))
            if split != "train":
                own, train = ([row.texts for row in self.rows(one)] for one in (split, "train"))
                warn_of_leaks(split, own, train)
        return self._examples[split]

    def corrupted(self, split: Split, noise: TextNoise, level: float, seed: int) -> Sequence[Any]:
        rows = self.rows(split)
        texts = [noise.corrupt(row.texts, level, seed, row.id) for row in rows]
        changed = zip(rows, texts, strict=True)
        return self.tokenised([replace(row, texts=noisy) for row, noisy in changed])

    def fingerprint(self, splits: Sequence[Split]) -> str:
        """A hash of everything that tokens and labels depend on."""
        tokenizer, backend = self.tokenizer, self.tokenizer.backend_tokenizer
        # It keeps the truncation of its last call; every call sets that to `max_length`.
        backend.no_truncation()
        backend.no_padding()
        settings = [tokenizer.special_tokens_map, tokenizer.model_input_names]
        settings += [tokenizer.truncation_side, self.max_length]
        digest = hashlib.blake2b(f"{backend.to_str()} {settings}".encode(), digest_size=8)
        for split in splits:
            for row in self.rows(split):
                digest.update(f"{split} {row}".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Tokens:
    """One tokenized example: `input_ids`, and what else its tokenizer returns for each position."""

    id: str
    inputs: dict[str, np.ndarray[Any, Any]]
    label: int


class TextClassification(TextTask, Classification):
    """One or two texts and a class."""

    def __init__(
        self,
        rows: Callable[[Split], list[Row]],
        classes: Sequence[Label],
        tokenizer: Any,
        max_length: int,
        loss: LossName = "cross_entropy",
    ) -> None:
        super().__init__(rows, tokenizer, max_length)
        self.classes = list(classes)
        self.vocabulary_size = len(tokenizer)
        self.loss = loss

    @property
    def has_pairs(self) -> bool:
        """Whether an example is a pair of texts."""
        return len(self.rows("train")[0].texts) == 2

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[Tokens]:
        if any((len(one) == 2) != self.has_pairs for one in texts):
            raise UserError(f"expected {'pairs of' if self.has_pairs else 'single'} texts")
        new = [Row(str(index), parts, IGNORED) for index, parts in enumerate(texts)]
        return self.tokenised(new) if new else []

    def tested_on(self, other: Task) -> TextClassification:
        assert isinstance(other, TextClassification)
        if (self.classes, self.has_pairs) != (other.classes, other.has_pairs):
            raise UserError(
                f"the run has classes {self.classes[:20]}, the other data {other.classes[:20]}, or "
                "only one of them has pairs of texts; name data of the same kind"
            )
        return TextClassification(
            lambda split: (other if split == "test" else self).rows(split),
            *(self.classes, self.tokenizer, self.max_length, self.loss),
        )

    def length(self, example: Tokens) -> int:
        return len(example.inputs["input_ids"])

    def collate(self, examples: Sequence[Tokens]) -> Batch:
        batch: Batch = {
            "ids": [example.id for example in examples],
            "labels": torch.tensor([example.label for example in examples]),
        }
        for name in examples[0].inputs:
            fill = (self.tokenizer.pad_token_id or 0) if name == "input_ids" else 0
            rows = [torch.from_numpy(example.inputs[name]).long() for example in examples]
            batch[name] = pad_sequence(rows, batch_first=True, padding_value=fill)
        masks = [torch.ones_like(row) for row in rows]
        return {**batch, "attention_mask": pad_sequence(masks, batch_first=True)}

    def tokenised(self, rows: Sequence[Row]) -> list[Tokens]:
        """The tokenizer's inputs; it joins pairs with its separator."""
        parts = [list(part) for part in zip(*(row.texts for row in rows), strict=True)]
        encoded = self.tokenizer(
            *parts, truncation=True, max_length=self.max_length, return_attention_mask=False
        )
        # An empty text to which the tokenizer adds nothing becomes one unknown token.
        nothing = {name: [0] for name in encoded} | {
            "input_ids": [self.tokenizer.unk_token_id or 0]
        }
        found = []
        for number, row in enumerate(rows):
            inputs = {name: encoded[name][number] or nothing[name] for name in encoded}
            arrays = {name: np.asarray(one, np.int32) for name, one in inputs.items()}
            found.append(Tokens(row.id, arrays, row.label))
        return found


# ---------------------------------------------------------------- where texts come from


def build(
    config: TextSection, data_root: Path | None, pretrained: str | None
) -> TextClassification:
    """The task on the texts that a recipe names; training data are read now."""
    find(config, data_root)
    tokenizer, own = load_tokenizer(pretrained, data_root), _own(config)
    names = {split: name for split in SPLITS if (name := getattr(own, split)) is not None}
    texts = (own.text,) if isinstance(own.text, str) else tuple(own.text)
    source, columns = Source(own.hub, own.subset, own.revision), Columns(texts, own.label)
    records = functools.cache(lambda split: source.read(names[split], columns, data_root))
    train: Records = records("train")
    classes = sorted(set(train.labels), key=lambda label: (isinstance(label, str), label))
    index = {label: number for number, label in enumerate(classes)}

    def rows(split: Split) -> list[Row]:
        part: Split = split if split in names else "train"
        texts, labels = records(part).texts, records(part).labels
        if unknown := set(labels) - index.keys():
            raise UserError(
                f"{split} data: label {unknown.pop()!r} does not occur in the training data; "
                f"expected one of {classes[:20]}"
            )
        chosen = _chosen(config, split, len(texts), is_held_out="validation" not in names)
        return [Row(f"{names[part]}-{row}", texts[row], index[labels[row]]) for row in chosen]

    max_length = config.max_length or min(tokenizer.model_max_length, _LONG)
    return TextClassification(rows, classes, tokenizer, max_length, config.loss)


def _chosen(config: TextSection, split: Split, size: int, *, is_held_out: bool) -> list[int]:
    """The rows of a split in random order, limited; `is_held_out` validation is part of train."""
    rows = np.random.default_rng(config.data_seed).permutation(size)
    if is_held_out and split != "test":
        held_out = round(config.validation_share * size)
        rows = rows[:held_out] if split == "validation" else rows[held_out:]
    if not len(rows):
        raise UserError(f"{split} data: none is left of {size}; change task.validation_share")
    return rows[: getattr(config.limit, split)].tolist()


def _own(config: TextSection) -> Text:
    """Which texts are read: those of the section, or of a published dataset."""
    if isinstance(config, Text):
        return config
    names = {"train": "train", "test": getattr(config, "test", "test"), "label": "label"}
    keys = {"name": "text", **names, **PUBLISHED[config.name], "revision": config.revision}
    return Text.model_validate(keys)


def find(config: TextSection, data_root: Path | None) -> None:
    """Refuse texts that are not here."""
    own = _own(config)
    for name in (own.train, own.test):
        Source(own.hub, own.subset, own.revision).find(name, data_root)
