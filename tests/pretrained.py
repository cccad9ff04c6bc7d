"""Tiny random models of the real classes, saved as folders that a recipe can name in place of a hub
id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AutoModel,
    BeitConfig,
    BertConfig,
    DebertaV2Config,
    DeiTConfig,
    Dinov2Config,
    Dinov2WithRegistersConfig,
    DINOv3ViTConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    ViTConfig,
    XLMRobertaConfig,
)

from cudt.utils.compat import survive_torchvision_mismatch

survive_torchvision_mismatch()

WORDS = [
    *(
        "a",
        "an",
        "and",
        "awful",
        "bad",
        "boring",
        "but",
        "dull",
        "film",
        "fine",
        "good",
        "great",
        "it",
        "lovely",
    ),
    *(
        "moving",
        "movie",
        "not",
        "of",
        "plot",
        "poor",
        "story",
        "the",
        "this",
        "was",
        "weak",
        "with",
        "acting",
        "cast",
    ),
    *(".", ",", "!", "?"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = {
    word: index for index, word in enumerate([*SPECIAL, *"abcdefghijklmnopqrstuvwxyz"[1:], *WORDS])
}

_SMALL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
}

#: By the name of the family: DistilBERT, BERT and RoBERTa of the paper's recipes, and others that
#: AutoModel knows.
CONFIGS: dict[str, Any] = {
    "distilbert": DistilBertConfig(
        vocab_size=len(VOCABULARY),
        dim=16,
        n_layers=3,
        n_heads=2,
        hidden_dim=32,
        max_position_embeddings=66,
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
        **_SMALL,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        type_vocab_size=0,
    ),
    # Normalises before its layers, and once more after the last.
    "modernbert": ModernBertConfig(
        **_SMALL, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, local_attention=8
    ),
}

#: A patch of 4 × 4 pixels in three channels has the 48 numbers of a token.
SMALL_IMAGES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 4,
}

_DINOV2 = {
    **{key: value for key, value in SMALL_IMAGES.items() if key != "intermediate_size"},
    "mlp_ratio": 2,
}

#: Encoders of images, by the name of the family.
IMAGE_CONFIGS: dict[str, Any] = {
    "vit": ViTConfig(**SMALL_IMAGES),
    # A token more, for distillation.
    "deit": DeiTConfig(**SMALL_IMAGES),
    # A weight that only masked patches use.
    "beit": BeitConfig(**SMALL_IMAGES, use_mask_token=True),
    # Positions for any size of image.
    "dinov2": Dinov2Config(**_DINOV2),
    "dinov2-registers": Dinov2WithRegistersConfig(**_DINOV2, num_register_tokens=2),
    # Two tokens more, and a last norm of another name.
    "dinov3": DINOv3ViTConfig(**SMALL_IMAGES, num_register_tokens=2),
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
    names = (
        ["input_ids", "token_type_ids", "attention_mask"]
        if pairs_have_types
        else ["input_ids", "attention_mask"]
    )
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


def tiny_llama_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes of UTF-8, so that every text comes back from its tokens; `<s>` before a text, `</s>`
    ends one."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: index for index, name in enumerate(["<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def tiny_llama_config(**changes: Any) -> Any:
    """A Llama of three narrow layers."""
    # Imported here: a torchvision that does not fit torch needs help first.
    from transformers import LlamaConfig

    small = {
        "vocab_size": 258,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    }
    # Larger weights than usual, so that a random model is not indifferent to what it reads.
    return LlamaConfig(**{**small, "initializer_range": 0.2, **changes})


def tiny_llama(folder: Path, **changes: Any) -> str:
    """Save a random Llama with a tokenizer of bytes; returns its name for a recipe."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_llama_config(**changes)).save_pretrained(folder)
    tiny_llama_tokenizer().save_pretrained(folder)
    return str(folder)


def tiny_pretrained(folder: Path, family: str = "bert", **changes: Any) -> str:
    """Save a random encoder of a family with its tokenizer; returns what a recipe calls it."""
    config = CONFIGS[family]
    for key, value in changes.items():
        config = type(config)(**{**config.to_dict(), key: value})
    save_random(folder, config)
    tiny_tokenizer(pairs_have_types=getattr(config, "type_vocab_size", 0) > 1).save_pretrained(
        folder
    )
    return str(folder)


def tiny_vision(
    folder: Path, family: str = "vit", *, processor: dict[str, Any] | None = None, **changes: Any
) -> str:
    """Save a random encoder of images with an image processor of ViT's; returns what a recipe calls
    it."""
    config = IMAGE_CONFIGS[family]
    save_random(folder, type(config)(**{**config.to_dict(), **changes}))
    save_processor(folder, **(processor or {}))
    return str(folder)


def save_random(folder: Path, config: Any) -> None:
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)


def save_processor(folder: Path, **settings: Any) -> None:
    """ViT's image processor for 16 × 16 pixels."""
    # The one that does not need torchvision; both save the same file.
    from transformers import ViTImageProcessorPil

    ViTImageProcessorPil(**{"size": {"height": 16, "width": 16}, **settings}).save_pretrained(
        folder
    )
