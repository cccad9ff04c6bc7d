"""What the smoke scale generates: instructions, and a tiny Llama with random weights."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch

from cudt.utils.device import survive_torchvision_mismatch
from cudt.utils.files import folder_next_to, write_text

#: Names below the data root, as the recipe smoke-llama uses them.
MODEL = "tiny-llama"
INSTRUCTIONS = "instructions.json"
#: Instructions to answer, in AlpacaEval's format.
QUESTIONS = "questions.json"
_COLOURS = ("red", "blue", "green", "white", "black")
_THINGS = ("door", "boat", "lamp", "coat")
#: Standard deviation of the weights; larger than usual, so that the output of a random model
#: depends on its input.
_SPREAD = 0.2


def make(folder: Path) -> None:
    """Write everything that the recipe smoke-llama reads into a folder, its data root; a model that
    exists is kept.
    """
    questions = [{"instruction": f"Name a {thing}."} for thing in _THINGS]
    for name, rows in ((INSTRUCTIONS, _instructions()), (QUESTIONS, questions)):
        write_text(folder / name, json.dumps(rows, indent=1) + "\n")
    model = folder / "models" / MODEL
    if not model.is_dir():
        _save_llama(model)


def _instructions() -> list[dict[str, str]]:
    """Instructions whose answer repeats a colour; every other one has an input."""
    rows = []
    for colour, thing in itertools.product(_COLOURS, _THINGS):
        asked, told = f"Paint the {thing} {colour}.", f"a {colour} {thing}"
        rows.append({"instruction": asked, "input": "", "output": told})
        asked, told = f"Which {thing}?", f"the {colour} {thing}"
        rows.append({"instruction": asked, "input": colour, "output": told})
    return rows


def _save_llama(target: Path) -> None:
    """Save a model folder that transformers loads; an interrupted call leaves no partial folder."""
    survive_torchvision_mismatch()
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.utils import logging

    # Its progress bar would garble the plan.
    logging.disable_progress_bar()
    target.parent.mkdir(parents=True, exist_ok=True)
    with folder_next_to(target) as temporary:
        tokenizer = _tokenizer()
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=32,
            max_position_embeddings=512,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            tie_word_embeddings=True,
            initializer_range=_SPREAD,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(config).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        temporary.replace(target)


def _tokenizer() -> Any:
    """A tokenizer of UTF-8 bytes, so that every text can be decoded again; `<s>` begins a text,
    `</s>` ends it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
