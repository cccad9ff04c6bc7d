"""Tiny random models of the real classes, saved as folders that a recipe can name in place of a hub
id, and batches for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from cudt.utils.device import survive_torchvision_mismatch

survive_torchvision_mismatch()

import transformers  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast  # noqa: E402

from cudt.models import causal  # noqa: E402
from cudt.models.causal import Causal  # noqa: E402
from cudt.tasks.alpaca import Alpaca  # noqa: E402
from cudt.tasks.base import IGNORED  # noqa: E402
from cudt.tasks.text import Row  # noqa: E402

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = """a an and awful bad boring but dull film fine good great it lovely moving movie not of
plot poor story the this was weak with acting cast . , ! ?""".split()
_KNOWN = [*SPECIAL, *"bcdefghijklmnopqrstuvwxyz", *WORDS]
VOCABULARY = {word: index for index, word in enumerate(_KNOWN)}
_TEXT: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
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
_DINOV2 = {**SMALL_IMAGES, "mlp_ratio": 2}
del _DINOV2["intermediate_size"]
_CAUSAL: dict[str, Any] = {
    **_TEXT,
    "vocab_size": 258,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    # Larger weights than usual, so that a random model is not indifferent to what it reads.
    "initializer_range": 0.2,
}


def _configs(**families: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        name.replace("_", "-"): getattr(transformers, f"{kind}Config")(**settings)
        for name, (kind, settings) in families.items()
    }


#: Text encoders by the name of the family.
CONFIGS = _configs(
    distilbert=(
        "DistilBert",
        {"vocab_size": len(VOCABULARY), "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32,
         "max_position_embeddings": 66},
    ),
    bert=("Bert", _TEXT),
    roberta=("Roberta", {**_TEXT, "type_vocab_size": 1}),
    # One layer that is used three times.
    albert=("Albert", {**_TEXT, "embedding_size": 8}),
    deberta_v2=(
        "DebertaV2",
        {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
         "position_buckets": 8, "type_vocab_size": 0},
    ),
    # Normalises before its layers, and once more after the last.
    modernbert=(
        "ModernBert",
        {**_TEXT, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3,
         "local_attention": 8},
    ),
)  # fmt: skip
#: Encoders of images.
IMAGE_CONFIGS = _configs(
    vit=("ViT", SMALL_IMAGES),
    beit=("Beit", {**SMALL_IMAGES, "use_mask_token": True}),  # a weight that only masks use
    dinov2=("Dinov2", _DINOV2),
    dinov3=("DINOv3ViT", {**SMALL_IMAGES, "num_register_tokens": 2}),  # a norm of another name
)
_LLAMA = {key: value for key, value in _CAUSAL.items() if key not in ("pad_token_id", "head_dim")}
#: Causal language models; they norm, count positions and scale embeddings in ways of their own.
CAUSAL = _configs(
    llama=("Llama", {**_LLAMA, "tie_word_embeddings": True}),
    gemma=("Gemma", _CAUSAL),
    gpt2=(
        "GPT2",
        {"vocab_size": 258, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 128,
         "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2},
    ),
    opt=(
        "OPT",
        {**_CAUSAL, "init_std": 0.2, "pad_token_id": 1, "word_embed_proj_dim": 16, "ffn_dim": 32},
    ),
)  # fmt: skip
#: These scale or cap their logits.
REFUSED = _configs(
    gemma2=("Gemma2", _CAUSAL),
    granite=("Granite", {**_CAUSAL, "logits_scaling": 8.0}),
)


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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{word[1:-1].lower()}_token": word for word in SPECIAL},
        model_max_length=64,
        model_input_names=[
            "input_ids", *(["token_type_ids"] if pairs_have_types else []), "attention_mask"
        ],
    )  # fmt: skip


def tiny_llama_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes of UTF-8, so that every text comes back from its tokens; `<s>` before a text, `</s>` ends one."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: index for index, name in enumerate(["<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def changed(config: Any, **changes: Any) -> Any:
    return type(config)(**{**config.to_dict(), **changes})


def tiny_llama(folder: Path, **changes: Any) -> str:
    """Save a random Llama with a tokenizer of bytes; returns its name for a recipe."""
    return save_causal(folder, changed(CAUSAL["llama"], **changes))


def save_causal(folder: Path, config: Any) -> str:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_llama_tokenizer().save_pretrained(folder)
    return str(folder)


def tiny_pretrained(folder: Path, family: str = "bert", **changes: Any) -> str:
    """Save a random encoder of a family with its tokenizer; returns what a recipe calls it."""
    config = changed(CONFIGS[family], **changes)
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    has_types = getattr(config, "type_vocab_size", 0) > 1
    tiny_tokenizer(pairs_have_types=has_types).save_pretrained(folder)
    return str(folder)


def tiny_vision(
    folder: Path, family: str = "vit", *, processor: dict[str, Any] | None = None, **changes: Any
) -> str:
    """Save a random encoder of images with an image processor of ViT's; returns what a recipe calls it."""
    torch.manual_seed(0)
    AutoModel.from_config(changed(IMAGE_CONFIGS[family], **changes)).save_pretrained(folder)
    settings = {"size": {"height": 16, "width": 16}, **(processor or {})}
    transformers.ViTImageProcessorPil(**settings).save_pretrained(folder)
    return str(folder)


ROWS = [[0, 30, 40, 38, 77, 3, 1], [0, 46, 34, 3], [0, 50, 51, 33, 41, 35, 99, 140, 1]]


def instructions(max_length: int = 100) -> Alpaca:
    rows = [Row("0", ("Say.", ""), "red")]
    return Alpaca(lambda split: rows, tiny_llama_tokenizer(), max_length)


def build_causal(folder: str, max_length: int = 100, **changes: Any) -> Causal:
    torch.manual_seed(0)
    config = causal.Config(name="causal", pretrained=folder, **{"lora": None, **changes})
    return causal.build(config, instructions(max_length), None).eval()


def batch_of(rows: list[list[int]], extra: int = 0, *, causal: bool = False) -> dict[str, Any]:
    """Padded rows of tokens, with a class each or, for a causal model, every next token as its label."""
    length = max(map(len, rows)) + extra
    following = [row[1:] + [IGNORED] * (length + 1 - len(row)) for row in rows]
    return {
        "ids": [str(number) for number in range(len(rows))],
        "input_ids": torch.tensor([row + [0] * (length - len(row)) for row in rows]),
        "attention_mask": torch.tensor(
            [[1] * len(row) + [0] * (length - len(row)) for row in rows]
        ),
        "labels": torch.tensor(following if causal else [n % 2 for n in range(len(rows))]),
    }


def with_adapters_that_do_something(model: Causal) -> Causal:
    """New adapters change nothing: half of their weights are zero."""
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model
