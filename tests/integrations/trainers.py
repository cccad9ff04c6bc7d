"""Tiny models and data for tests of trainers of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import TrainingArguments

from cudt.integrations.transformers import Descent, DescentTrainer
from tests.parts.test_own_head import model_of

SETTINGS = Descent(alpha=0.1, resilience="decay", beta=5.0)


class Rows(Dataset[Any]):
    """Examples in a list."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


def examples(head: str, count: int = 32, seed: int = 0) -> Rows:
    """Texts of 4 to 9 tokens, or pictures, with a class, with classes of some tokens, or with their
    own tokens."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        if head == "image":
            pixels = torch.randn(3, 16, 16, generator=generator)
            rows.append({"pixel_values": pixels, "labels": number % 3})
            continue
        length = int(torch.randint(4, 10, (), generator=generator))
        tokens = torch.randint(5, 40, (length,), generator=generator)
        shown = torch.where(torch.rand(length, generator=generator) < 0.7, tokens, -100)
        labels: Any = {
            "sequence": number % 3,
            "token": torch.where(shown < 0, shown, tokens % 3),
        }.get(head, shown)
        rows.append({"input_ids": tokens, "labels": labels})
    return Rows(rows)


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    if "pixel_values" in rows[0]:
        pictures = torch.stack([row["pixel_values"] for row in rows])
        return {"pixel_values": pictures, "labels": torch.tensor([row["labels"] for row in rows])}
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    batch = {"attention_mask": (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).long()}
    for name, fill in (("input_ids", 0), ("labels", -100)):
        values = [row[name] for row in rows]
        if isinstance(values[0], Tensor):
            batch[name] = torch.nn.utils.rnn.pad_sequence(
                values, batch_first=True, padding_value=fill
            )
        else:
            batch[name] = torch.tensor(values)
    return batch


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    """Adam at a constant rate, as cudt trains by default; every update is logged."""
    plain: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "log_level": "error",
    }
    return TrainingArguments(str(folder), **{**plain, **changes})


def trainer_of(
    folder: Path, head: str = "sequence", family: str = "bert", **options: Any
) -> DescentTrainer:
    """A trainer of a tiny model without dropout, or of your own.

    `args` changes its arguments, `model` its configuration.
    """
    torch.set_num_threads(1)
    changes = {"args": {}, "model": NO_DROPOUT.get(family, {}), "own": None, **options}
    own, config = changes.pop("own"), changes.pop("model")
    return DescentTrainer(
        **{
            "model": model_of(head, family, **config) if own is None else own,
            "args": arguments(folder, **changes.pop("args")),
            "train_dataset": examples(head),
            "data_collator": collate,
            "descent": SETTINGS,
            **changes,
        }
    )


_OFF = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.0,
}
#: What turns dropout off, by family.
NO_DROPOUT: dict[str, dict[str, float]] = {
    **dict.fromkeys(("bert", "roberta", "mpnet", "albert", "deberta-v2", "vit"), _OFF),
    "distilbert": {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "opt": {"dropout": 0.0},
}


def by_layer(trainer: Any, name: str) -> Tensor:
    """What was logged of the layers, (updates, layers)."""
    rows = [row for row in trainer.state.log_history if f"{name}/layer_01" in row]
    columns = sorted(key for key in rows[0] if key.startswith(f"{name}/layer_"))
    return torch.tensor([[row[key] for key in columns] for row in rows])


def weights_of(trainer: Any) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])
