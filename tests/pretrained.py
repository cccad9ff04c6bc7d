"""Tiny random encoders of the real classes, saved as folders that a recipe can name in place of a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AutoModel,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

from cudt.compat import survive_torchvision_mismatch

survive_torchvision_mismatch()

WORDS = [
    *("a", "an", "and", "awful", "bad", "boring", "but", "dull", "film", "fine", "good", "great", "it", "lovely"),
    *("moving", "movie", "not", "of", "plot", "poor", "story", "the", "this", "was", "weak", "with", "acting", "cast"),
    *(".", ",", "!", "?"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = {word: index for index, word in enumerate([*SPECIAL, *"abcdefghijklmnopqrstuvwxyz"[1:], *WORDS])}

_SMALL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
}

#: By the name of the family: DistilBERT, BERT and RoBERTa of the paper's recipes, and others that AutoModel knows.
CONFIGS: dict[str, Any] = {
    "distilbert": DistilBertConfig(
        vocab_size=len(VOCABULARY), dim=16, n_layers=3, n_heads=2, hidden_dim=32, max_position_embeddings=66
    ),
    "bert": BertConfig(**_SMALL),
    "roberta": RobertaConfig(**_SMALL, type_vocab_size=1),
    "xlm-roberta": XLMRobertaConfig(**_SMALL, type_vocab_size=1),
    # A projection behind the look-up.
    "electra": ElectraConfig(**_SMALL, embedding_size=8),
    # One layer that is used three times, and a projection.
    "albert": AlbertConfig(**_SMALL, embedding_size=8),
    "mpnet": MPNetConfig(**_SMALL),
    "deberta-v2": DebertaV2Config(
        **_SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, type_vocab_size=0
    ),
    # Normalises before its layers, and once more after the last.
    "modernbert": ModernBertConfig(
        **_SMALL, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, local_attention=8
    ),
}


def tiny_tokenizer(pairs_have_types: bool = True) -> PreTrainedTokenizerFast:
    """Words of a small vocabulary, `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", VOCABULARY["[CLS]"]), ("[SEP]", VOCABULARY["[SEP]"])],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"] if pairs_have_types else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
        model_input_names=names,
    )


def tiny_pretrained(folder: Path, family: str = "bert", **changes: Any) -> str:
    """Save a random encoder of a family with its tokenizer; returns what a recipe calls it."""
    config = CONFIGS[family]
    for key, value in changes.items():
        config = type(config)(**{**config.to_dict(), key: value})
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    tiny_tokenizer(pairs_have_types=getattr(config, "type_vocab_size", 0) > 1).save_pretrained(folder)
    return str(folder)
