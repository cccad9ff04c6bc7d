"""Tiny models, data and trainers for tests of Trainer and its subclasses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from cudt.integrations.trainer import Descent, DescentTrainer

SETTINGS = Descent(alpha=0.1, resilience="decay", beta=5.0)
_COMMON = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
_SIZE = {"vocab_size": 40, "intermediate_size": 32, "pad_token_id": 0, **_COMMON}
# Weights larger than usual, so that layers and losses differ clearly.
_LARGE = {"initializer_range": 0.3, "num_labels": 3}
_CAUSAL = {**_SIZE, "num_key_value_heads": 1, "head_dim": 8, "initializer_range": 0.3}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_NO_DROPOUT_2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 3, "n_head": 2, "initializer_range": 0.3}

#: Sequential batches of eight at a constant rate; every update is logged.
ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "max_steps": 4,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "train_sampling_strategy": "sequential",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "log_level": "error",
}
#: A class, its configuration, and the kind of its labels.
FAMILIES: dict[str, tuple[Any, Any, str]] = {
    "bert": (BertForSequenceClassification, BertConfig(**_SIZE, **_LARGE), "text"),
    "bert-tokens": (BertForTokenClassification, BertConfig(**_SIZE, **_LARGE), "tokens"),
    "llama": (LlamaForCausalLM, LlamaConfig(**_CAUSAL), "words"),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**_CAUSAL), "words"),  # caps its logits
    "gpt2": (GPT2LMHeadModel, GPT2Config(**_GPT2, **_NO_DROPOUT_2), "words"),
    "vit": (
        ViTForImageClassification,
        ViTConfig(**_COMMON, **_LARGE, intermediate_size=32, image_size=16, patch_size=8),
        "images",
    ),
}


def model_of(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    kind, config, _ = FAMILIES[family]
    if family.startswith("bert"):
        changes = {**NO_DROPOUT, **changes}
    return kind(type(config)(**{**config.to_dict(), **changes}))


def rows_of(family: str, count: int = 32, seed: int = 0) -> list[dict[str, Any]]:
    """Texts of 4 to 9 tokens, or pictures, with a class, classes of tokens, or their own tokens."""
    generator = torch.Generator().manual_seed(seed)
    kind, rows = FAMILIES[family][2], []
    for number in range(count):
        if kind == "images":
            pixels = torch.randn(3, 16, 16, generator=generator)
            rows.append({"pixel_values": pixels, "labels": number % 3})
            continue
        length = int(torch.randint(4, 10, (), generator=generator))
        tokens = torch.randint(5, 40, (length,), generator=generator)
        shown = torch.where(torch.rand(length, generator=generator) < 0.7, tokens, -100)
        by_token = torch.where(shown < 0, shown, tokens % 3)
        labels: Any = {"text": number % 3, "tokens": by_token, "words": shown}[kind]
        rows.append({"input_ids": tokens, "labels": labels})
    return rows


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    batch = {}
    for name, fill in (("pixel_values", 0), ("input_ids", 0), ("labels", -100)):
        if name in rows[0]:
            values = [torch.as_tensor(row[name]) for row in rows]
            same = len({len(one) if one.ndim else 0 for one in values}) == 1
            pad = torch.nn.utils.rnn.pad_sequence
            batch[name] = torch.stack(values) if same else pad(values, True, fill)
    if "input_ids" in batch:
        lengths = torch.tensor([[len(row["input_ids"])] for row in rows])
        batch["attention_mask"] = (torch.arange(int(lengths.max())) < lengths).long()
    return batch


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    return TrainingArguments(str(folder), **{**ARGUMENTS, **changes})


def trainer_of(folder: Path, family: str = "bert", **options: Any) -> DescentTrainer:
    """A trainer of a tiny model without dropout; `args` changes its arguments."""
    return DescentTrainer(
        **{
            "model": options.pop("model", None) or model_of(family),
            "args": arguments(folder, **options.pop("args", {})),
            "train_dataset": rows_of(family),
            "data_collator": collate,
            "descent": SETTINGS,
            **options,
        }
    )


def trained(folder: Path, family: str = "bert", **options: Any) -> DescentTrainer:
    trainer = trainer_of(folder, family, **options)
    trainer.train()
    return trainer


def by_layer(trainer: Any, name: str) -> Tensor:
    """What was logged of the layers, (updates, layers)."""
    rows = [row for row in trainer.state.log_history if f"{name}/layer_01" in row]
    columns = sorted(key for key in rows[0] if key.startswith(f"{name}/layer_"))
    return torch.tensor([[row[key] for key in columns] for row in rows])


def weights_of(model: torch.nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])
