"""Tiny causal language models of several families, and batches for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GraniteConfig,
    OPTConfig,
    Qwen2Config,
)

from cudt.models import causal
from cudt.models.causal import Config
from cudt.models.causal_network import Causal
from cudt.tasks.alpaca import Alpaca
from cudt.tasks.base import IGNORED
from tests.pretrained import tiny_llama_tokenizer

ROWS = [[0, 30, 40, 38, 77, 3, 1], [0, 46, 34, 3], [0, 50, 51, 33, 41, 35, 99, 140, 1]]
_SMALL: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
_OTHER: dict[str, Any] = {
    "vocab_size": 258,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
#: Llama is saved by `tiny_llama`; the others norm, count positions and scale their embeddings in
#: ways of their own.
CONFIGS: dict[str, Any] = {
    "llama": None,
    "llama-untied": None,
    "qwen2": Qwen2Config(**_SMALL),
    "gemma": GemmaConfig(**_SMALL),
    "gpt2": GPT2Config(**_OTHER, n_embd=16, n_layer=3, n_head=2, n_positions=128),
    "opt": OPTConfig(
        **{
            **_OTHER,
            "init_std": 0.2,
            "pad_token_id": 1,
            "hidden_size": 16,
            "word_embed_proj_dim": 16,
            "ffn_dim": 32,
        },
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=128,
    ),
}
#: These scale or cap their logits.
REFUSED: dict[str, Any] = {
    "gemma2": Gemma2Config(**_SMALL),
    "cohere": CohereConfig(**_SMALL),
    "cohere2": Cohere2Config(**_SMALL),
    "granite": GraniteConfig(**_SMALL, logits_scaling=8.0),
}


def save_causal(folder: Path, config: Any) -> str:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_llama_tokenizer().save_pretrained(folder)
    return str(folder)


def instructions(max_length: int = 100) -> Alpaca:
    rows: list[tuple[str, tuple[str, ...]]] = [("0", ("Say.", "", "red"))]
    return Alpaca(
        lambda: {"train": rows, "validation": rows, "test": rows},
        tiny_llama_tokenizer(),
        max_length,
    )


def build(folder: str, max_length: int = 100, **changes: Any) -> Causal:
    torch.manual_seed(0)
    config = Config(name="causal", pretrained=folder, **{"lora": None, **changes})
    return causal.build(config, instructions(max_length), None).eval()


def batch_of(rows: list[list[int]], extra: int = 0) -> dict[str, Any]:
    """Every token but the first counts as if it were a response."""
    length = max(len(row) for row in rows) + extra
    labels = [row[1:] + [IGNORED] * (length + 1 - len(row)) for row in rows]
    return {
        "ids": [str(number) for number in range(len(rows))],
        "input_ids": torch.tensor([row + [0] * (length - len(row)) for row in rows]),
        "attention_mask": torch.tensor(
            [[1] * len(row) + [0] * (length - len(row)) for row in rows]
        ),
        "labels": torch.tensor(labels),
    }


def plain(folder: str, batch: dict[str, Any], **inputs: Any) -> Any:
    """The library's own forward pass, without any hook."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = inputs or {"input_ids": batch["input_ids"]}
    return model(
        **inputs, attention_mask=batch["attention_mask"], output_hidden_states=True, use_cache=False
    )


def states_of(model: Causal, batch: dict[str, Any]) -> list[Tensor]:
    return model.layer_states(model.signal(batch)[0], batch)


def logits(model: Causal, state: Tensor, batch: dict[str, Any]) -> Tensor:
    answer = model.readout(state, batch)
    return answer.head(answer.states)


def with_adapters_that_do_something(model: Causal) -> Causal:
    """New adapters change nothing: half of their weights are zero."""
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model
