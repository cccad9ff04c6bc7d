"""Examples that somebody else tokenised, kept in a folder as train.parquet, validation.parquet and test.parquet.

Trainers of other libraries write them into a run folder (integrations/stored_run.py), so that cudt evaluates the run on
the data that it was trained with. data/stored_examples.py describes the files.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from cudt.config.bounds import Count, CountFromZero
from cudt.config.schema import Limit, NamedSection
from cudt.data.hub import DEFAULT_ROOT, load_tokenizer, local_folder
from cudt.data.splits import SPLITS, OnDemand, Split
from cudt.data.stored_examples import LABELS, PIXELS, TOKENS, Kind, StoredExample, read_examples
from cudt.tasks.base import IGNORED, Task
from cudt.tasks.classification import Classification
from cudt.tasks.labelled import flat
from cudt.tasks.token_task import TokenTask
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from cudt.data.batching import Batch

    Array = np.ndarray[Any, Any]


class Config(NamedSection):
    """Where the examples are, and what their labels are."""

    folder: str
    """Folder of train.parquet, validation.parquet and test.parquet; relative to the data root or the current folder."""
    kind: Kind
    """What has a label: sequence, the tokens of an example together; image, its pixels; tokens, each token; or causal,
    each token, whose label is the next one."""
    classes: Count | None = None
    """Number of classes; required, but not with kind: causal, whose classes are the tokens."""
    pad: CountFromZero = 0
    """Token that fills shorter examples of a batch up."""
    limit: Limit = Limit()
    """Use at most this many examples of each split, the first ones; all by default."""

    @model_validator(mode="after")
    def _classes_are_counted(self) -> Config:
        if (self.classes is None) != (self.kind == "causal"):
            raise ValueError(
                "kind: causal has no classes but its tokens; remove classes"
                if self.kind == "causal"
                else f"kind: {self.kind} needs classes, the number of classes"
            )
        return self


class Stored(Task):
    """Examples from files, by split; test data are read when a run is tested."""

    version = 1

    def __init__(self, splits: Mapping[Split, list[StoredExample]], config: Config, tokenizer: Any = None) -> None:
        self._splits = splits
        self.kind = config.kind
        self.n_classes = config.classes or 0
        self._pad = config.pad
        self._vocabulary: tuple[int, str] | None = None
        self.tokenizer = tokenizer

    def limit_tokens(self, n_embeddings: int, name: str) -> None:
        """Refuse tokens that a model has no embedding for, also in splits that are read later."""
        self._vocabulary = (n_embeddings, name)
        self.examples("train")

    def examples(self, split: Split) -> Sequence[StoredExample]:
        found = self._splits[split]
        if self._vocabulary is not None:
            count, name = self._vocabulary
            for example in found:
                if max(example.inputs[TOKENS].max(), example.labels.max() if self.kind == "causal" else 0) >= count:
                    raise UserError(
                        f"{split} data, example {example.id}: a token is not in the vocabulary of '{name}' "
                        f"({count} tokens); use the model that the examples were tokenised for"
                    )
        return found

    def fingerprint(self, splits: Sequence[Split]) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for split in splits:
            for example in self._splits[split]:
                for name, values in sorted({**example.inputs, LABELS: example.labels}.items()):
                    digest.update(f"{example.id} {name} {values.shape} {values.dtype}".encode() + values.tobytes())
        return digest.hexdigest()

    def length(self, example: StoredExample) -> int:
        return example.length

    def inputs_of(self, examples: Sequence[StoredExample]) -> Batch:
        """The tensors of a batch without labels."""
        import numpy as np
        import torch

        ids = [example.id for example in examples]
        if self.kind == "image":
            return {PIXELS: torch.from_numpy(np.stack([one.inputs[PIXELS] for one in examples])), "ids": ids}
        lengths = torch.tensor([example.length for example in examples])
        width = int(lengths.max())
        columns = {
            name: _padded([one.inputs[name] for one in examples], width, self._pad if name == TOKENS else 0)
            for name in examples[0].inputs
        }
        return {**columns, "attention_mask": (torch.arange(width) < lengths.unsqueeze(1)).long(), "ids": ids}


class StoredClasses(Stored, Classification):
    """A class for each example."""

    def train_labels(self) -> Sequence[int]:
        return [int(example.labels[0]) for example in self.examples("train")]

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[StoredExample]:
        """Examples without a label, as the saved tokenizer makes them; no longer than the longest training example."""
        import numpy as np

        if self.tokenizer is None or self.kind == "image":
            return super().from_texts(texts)
        train, found = self.examples("train"), []
        longest, columns = max(one.length for one in train), [*train[0].inputs]
        for index, parts in enumerate(texts):
            tokens = self.tokenizer(*parts, truncation=True, max_length=longest)
            if missing := [name for name in columns if name not in tokens]:
                raise UserError(f"the tokenizer of this run does not make '{missing[0]}', which its training data have")
            inputs = {name: np.asarray(tokens[name], np.int64) for name in columns}
            found.append(StoredExample(str(index), inputs, np.array([IGNORED])))
        return found

    def collate(self, examples: Sequence[StoredExample]) -> Batch:
        import torch

        return {**self.inputs_of(examples), "labels": torch.tensor([int(one.labels[0]) for one in examples])}


class StoredTokens(Stored, TokenTask):
    """A class for each token, or the next token."""

    def collate(self, examples: Sequence[StoredExample]) -> Batch:
        """With `labelled`, the positions of the labels in the flattened batch, and `places`, those in each example."""
        inputs = self.inputs_of(examples)
        width = inputs[TOKENS].shape[1]
        labels = _padded([self._targets(one) for one in examples], width, IGNORED)
        places = [(row != IGNORED).nonzero().squeeze(1) for row in labels]
        return {**inputs, "labels": labels, "labelled": flat(places, width), "places": places}

    def label_positions(self, batch: Batch) -> Sequence[Tensor]:
        return batch["places"]

    def label_counts(self) -> Counter[int]:
        counts = Counter[int]()
        for example in self.examples("train"):
            counts.update(self._targets(example).tolist())
        del counts[IGNORED]
        return counts

    def _targets(self, example: StoredExample) -> Array:
        """The label of each position; of causal examples that is the next token, and the last position has none."""
        import numpy as np

        if self.kind == "tokens":
            return example.labels
        return np.append(example.labels[1:], IGNORED)


def _padded(rows: Sequence[Array], width: int, fill: int) -> Tensor:
    import numpy as np
    import torch

    padded = [np.pad(row, (0, width - len(row)), constant_values=fill) for row in rows]
    return torch.from_numpy(np.stack(padded))


def build(config: Config, data_root: Path | None, pretrained: str | None) -> Stored:
    """The task on the files of a folder; the tokenizer is that of a model in a folder, if it has one."""
    folder = find_folder(config.folder, data_root)

    def read(split: Split) -> list[StoredExample]:
        file = folder / f"{split}.parquet"
        if split == "test" and not file.is_file():
            raise UserError(f"{file}: does not exist, so the run cannot be tested; give its trainer a test_dataset")
        return read_examples(file, split, config.kind, config.classes, getattr(config.limit, split))

    source = None if pretrained is None else local_folder(pretrained, data_root)
    has_tokenizer = source is not None and (source / "tokenizer_config.json").is_file()
    tokenizer = load_tokenizer(pretrained, data_root) if pretrained and has_tokenizer else None
    kind = StoredTokens if config.kind in ("tokens", "causal") else StoredClasses
    return kind(OnDemand(SPLITS, read), config, tokenizer)


def find_folder(name: str, data_root: Path | None) -> Path:
    """The folder below the data root or the current folder."""
    root = data_root or DEFAULT_ROOT
    for folder in (root / name, Path(name).expanduser()):
        if folder.is_dir():
            return folder
    raise UserError(f"task.folder: '{name}' does not exist below {root} or the current folder")
