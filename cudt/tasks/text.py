"""Text classification: IMDb (Maas et al., 2011), MNLI (Williams et al., 2018), and your own texts
in files or on the hub; and what every task with classes shares.

With K classes, probabilities p and the true class c, the loss f is one of

    cross_entropy           −log p_c, without bound
    brier                   Σ_k (p_k − [k = c])², in [0, 2]
    clipped_cross_entropy   −log max(p_c, p_min), in [0, log 1/p_min], with p_min = 1/(100·K)

p_min is a hundredth of the probability of guessing. An example whose true class gets less has the
largest loss and no gradient.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor

from cudt.config.tasks import LossName, Mnli, Text, TextSection
from cudt.data import text as data
from cudt.data.hub import Status, load_tokenizer
from cudt.data.loader import Batch
from cudt.data.text import Columns, HubSet, Label, Records
from cudt.noise import TextNoise
from cudt.tasks.base import IGNORED, Split, Task, leaked
from cudt.utils.errors import UserError

#: The published datasets by the name of their task.
PUBLISHED = {
    "imdb": (HubSet("stanfordnlp/imdb", "plain_text"), Columns(("text",), "label")),
    "mnli": (HubSet("nyu-mll/glue", "mnli"), Columns(("premise", "hypothesis"), "label")),
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
    """f is a loss of the class probabilities; the metric is the accuracy of the most likely
    class.
    """

    metric_name = "accuracy"
    higher_is_better = True
    scores_are_shares = True
    n_classes: int
    loss: LossName = "cross_entropy"
    """f: the recipe's `task.loss`."""
    classes: Sequence[Label] = ()
    """What the data call the classes, in the order of the answers; empty for 0, 1, …"""

    @abstractmethod
    def train_labels(self) -> Sequence[int]:
        """The classes of the training examples."""

    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        return class_losses(self.loss, answer, batch["labels"])

    def scores(self, answer: Tensor, batch: Batch) -> Tensor:
        return (answer.argmax(-1) == batch["labels"]).to(answer.dtype)

    def probabilities(self, answer: Tensor) -> Tensor:
        """The probability of each class, (examples, classes)."""
        return answer.softmax(-1)

    def reference_loss(self) -> float:
        """The least loss of a classifier that ignores its input."""
        counts = Counter(self.train_labels())
        shares = [count / counts.total() for count in counts.values()]
        return loss_of_guessing(self.loss, [*shares, *[0.0] * (self.n_classes - len(shares))])


@dataclass(frozen=True)
class LabelledText:
    """One example before tokenization."""

    id: str
    texts: tuple[str, ...]
    label: int


@dataclass(frozen=True)
class Tokens:
    """One tokenized example: `input_ids`, and what else its tokenizer returns for each position."""

    id: str
    inputs: dict[str, np.ndarray[Any, Any]]
    label: int


class TextClassification(Classification):
    """One or two texts and a class."""

    version = 1
    has_texts = True

    def __init__(
        self,
        texts: Callable[[Split], list[LabelledText]],
        classes: Sequence[Label],
        tokenizer: Any,
        max_length: int,
        loss: LossName = "cross_entropy",
    ) -> None:
        self._texts = functools.cache(texts)
        self._tokens: dict[Split, list[Tokens]] = {}
        self.classes = list(classes)
        self.n_classes = len(self.classes)
        self.tokenizer = tokenizer
        self.vocabulary_size = len(tokenizer)
        self.max_length = max_length
        self.loss = loss

    @property
    def has_pairs(self) -> bool:
        """Whether an example is a pair of texts."""
        return len(self._texts("train")[0].texts) == 2

    @property
    def _kind(self) -> str:
        kind = "pairs of texts" if self.has_pairs else "single texts"
        return f"{kind} with classes {', '.join(map(repr, self.classes[:20]))}"

    def examples(self, split: Split) -> Sequence[Tokens]:
        if split not in self._tokens:
            self._tokens[split] = tokens = self._tokenised(self._texts(split))
            rows = [example.inputs["input_ids"] for example in tokens]
            self._notes |= data.unknown_words(self.tokenizer, rows, split)
            if split != "train":
                own, train = ([one.texts for one in self._texts(name)] for name in (split, "train"))
                self._notes |= leaked(split, own, train)
        return self._tokens[split]

    def corrupted(
        self, split: Split, noise: TextNoise, level: float, seed: int
    ) -> Sequence[Tokens]:
        clean = self._texts(split)
        return self._tokenised(
            [
                LabelledText(one.id, noise.corrupt(one.texts, level, seed, one.id), one.label)
                for one in clean
            ]
        )

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[Tokens]:
        expected = 2 if self.has_pairs else 1
        for index, parts in enumerate(texts):
            if len(parts) != expected:
                raise UserError(f"text {index}: expected {expected} text(s), got {len(parts)}")
        new = [LabelledText(str(index), parts, IGNORED) for index, parts in enumerate(texts)]
        return self._tokenised(new) if new else []

    def tested_on(self, other: Task) -> TextClassification:
        if not isinstance(other, TextClassification):
            raise UserError("the run has texts with classes, the other data have none; name others")
        if (self.classes, self.has_pairs) != (other.classes, other.has_pairs):
            raise UserError(
                f"the run has {self._kind}, the other data have {other._kind}; name data of the "
                "same kind"
            )
        return TextClassification(
            lambda split: (other if split == "test" else self)._texts(split),
            *(self.classes, self.tokenizer, self.max_length, self.loss),
        )

    def fingerprint(self, splits: Sequence[Split]) -> str:
        parts = []
        for texts in map(self._texts, splits):
            sources = [text.texts for text in texts]
            parts.append(data.digest_of(self.tokenizer, sources, self.max_length))
            parts += [f"{text.id} {text.label}" for text in texts]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def length(self, example: Tokens) -> int:
        return len(example.inputs["input_ids"])

    def train_labels(self) -> Sequence[int]:
        return [text.label for text in self._texts("train")]

    def collate(self, examples: Sequence[Tokens]) -> Batch:
        lengths = torch.tensor([self.length(example) for example in examples])
        width = int(lengths.max())
        batch: Batch = {}
        for name in examples[0].inputs:
            fill = (self.tokenizer.pad_token_id or 0) if name == "input_ids" else 0
            batch[name] = torch.full((len(examples), width), fill)
            for row, example in zip(batch[name], examples, strict=True):
                values = torch.from_numpy(example.inputs[name])
                row[: len(values)] = values
        batch["attention_mask"] = (torch.arange(width) < lengths.unsqueeze(1)).long()
        batch["labels"] = torch.tensor([example.label for example in examples])
        batch["ids"] = [example.id for example in examples]
        return batch

    def _tokenised(self, texts: Sequence[LabelledText]) -> list[Tokens]:
        sources = [text.texts for text in texts]
        rows = data.tokenise(self.tokenizer, sources, self.max_length)
        return [Tokens(one.id, row, one.label) for one, row in zip(texts, rows, strict=True)]


# ---------------------------------------------------------------- where texts come from


def build(
    config: TextSection, data_root: Path | None, pretrained: str | None
) -> TextClassification:
    """The task on the texts that a recipe names; training and validation data are read now."""
    names, read = _source(config, data_root)
    records = functools.cache(lambda split: read(names[split]))
    train: Records = records("train")
    classes = sorted(set(train.labels), key=lambda label: (isinstance(label, str), label))
    index = {label: number for number, label in enumerate(classes)}

    def texts(split: Split) -> list[LabelledText]:
        source: Split = split if split in names else "train"
        found = records(source)
        rows = _rows(config, split, len(found.texts), is_held_out="validation" not in names)
        for label in {found.labels[row] for row in rows} - index.keys():
            raise UserError(
                f"{found.source}: label {label!r} does not occur in the training data; expected "
                f"one of {', '.join(map(repr, classes[:20]))}"
            )
        return [
            LabelledText(f"{names[source]}-{row}", found.texts[row], index[found.labels[row]])
            for row in rows
        ]

    tokenizer, max_length = _tokenizer(config, data_root, pretrained)
    task = TextClassification(texts, classes, tokenizer, max_length, config.loss)
    if len(set(task.train_labels())) < 2:
        raise UserError(
            f"{train.source}: all {len(task.train_labels())} training examples have one label; at "
            "least two labels are needed"
        )
    task.commit = train.commit
    return task


def _tokenizer(
    config: TextSection, data_root: Path | None, pretrained: str | None
) -> tuple[Any, int]:
    """The tokenizer of a model, and the most tokens of an example."""
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
    return tokenizer, config.max_length or min(most, _LONG)


def _rows(config: TextSection, split: Split, size: int, *, is_held_out: bool) -> list[int]:
    """The rows of a split in random order, limited; `is_held_out` validation is part of train."""
    rows = np.random.default_rng(config.data_seed).permutation(size)
    if is_held_out and split != "test":
        held_out = round(config.validation_share * size)
        rows = rows[:held_out] if split == "validation" else rows[held_out:]
    if not len(rows):
        raise UserError(
            f"{split} data: no example is left of {size}; add some, or change task.validation_share"
        )
    return rows[: getattr(config.limit, split)].tolist()


def _source(
    config: TextSection, data_root: Path | None
) -> tuple[dict[Split, str], Callable[[str], Records]]:
    """The source's names of train, test and, if it has one, validation; and what reads one."""
    if isinstance(config, Text):
        text = (config.text,) if isinstance(config.text, str) else tuple(config.text)
        columns = Columns(text, config.label)
        names: dict[Split, str] = {"train": config.train, "test": config.test}
        if config.validation is not None:
            names["validation"] = config.validation
        if config.hub is None:
            # Test data are read later, but a missing file is reported now.
            data.find_files(config.test, data_root)
            return names, lambda name: data.read_files(data.find_files(name, data_root), columns)
        source = HubSet(config.hub, config.subset, config.revision)
    else:
        source, columns = PUBLISHED[config.name]
        source = dataclasses.replace(source, revision=config.revision)
        test = config.test if isinstance(config, Mnli) else "test"
        names = {"train": "train", "test": test}
    return names, lambda name: source.read(name, columns, data_root)


def status(config: TextSection, data_root: Path | None) -> Status | None:
    """What is here of published texts; None for your own."""
    if config.name not in PUBLISHED:
        return None
    names, _ = _source(config, data_root)
    return PUBLISHED[config.name][0].status([names["train"], names["test"]], data_root)
