"""Write the data and weights that the recipes of same_numbers read: python inputs.py FOLDER.

A tiny random BERT and ViT, a tiny Llama, texts with commas, quotes, line breaks and words that a
reader may take for missing values, and clips as PNG, grey and in colour, and as AVI.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from cudt.reproduce import generated
from cudt.utils.device import survive_torchvision_mismatch

survive_torchvision_mismatch()

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTImageProcessor,
    ViTModel,
)

WORDS = (
    "a the film plot cast was is not very really and but null NA nan café great lovely fine bad "
    "dull poor"
).split()
#: Of both models.
SIZES: Any = {"num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
GOOD, BAD = {"great", "lovely", "fine", "café"}, {"bad", "dull", "poor", "null"}


def write(folder: Path) -> None:
    """Everything, from fixed seeds."""
    generated.make(folder)
    write_texts(folder / "same")
    write_clips(folder / "same")
    write_bert(folder / "models/same-bert")
    write_vit(folder / "models/same-vit")


def write_texts(folder: Path) -> None:
    """Two CSV files of texts whose label is that of most of their words."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for name, n_rows in (("train.csv", 160), ("test.csv", 60)):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["number", "review", "opinion"])
            for number in range(n_rows):
                words = draw.choices(WORDS, k=draw.randint(1, 30))
                good = sum(word in GOOD for word in words) - sum(word in BAD for word in words)
                text = "".join(word + draw.choice([" ", ", ", ' "', "\n", ". "]) for word in words)
                rows.writerow([number, text.strip() or "a", "good" if good > 0 else "bad"])
        # A text of one such word is a text.
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write("900,NA,bad\n901,null,bad\n902,great,good\n")


def write_clips(folder: Path) -> None:
    """Moving pictures of several sizes and modes."""
    draw = np.random.default_rng(0)
    for split, n_clips in (("train", 3), ("test", 2)):
        for number in range(n_clips):
            write_frames(folder / split / f"grey-{number}", moving(draw, 12, 40, 56)[..., 0])
            write_frames(folder / split / f"colour-{number}", moving(draw, 11, 37, 51))
            write_video(folder / split / f"video-{number}.avi", moving(draw, 13, 48, 64))


def moving(draw: np.random.Generator, length: int, height: int, width: int) -> Any:
    """A smooth random picture that moves to the side by two pixels a frame: frames, height, width,
    colours.
    """
    coarse = draw.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    return np.stack([np.roll(picture, 2 * step, axis=1) for step in range(length)])


def write_frames(folder: Path, frames: Any) -> None:
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"{number:03d}.png")


def write_video(path: Path, frames: Any) -> None:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=25)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def write_bert(folder: Path) -> None:
    """A random BERT of three layers with a tokenizer of words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(word.lower() for word in WORDS), ",", ".", '"']
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token")
    named: Any = dict(zip(names, special, strict=False))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {**SIZES, "hidden_size": 16, "max_position_embeddings": 40, "initializer_range": 0.3}
    config = BertConfig(vocab_size=len(vocabulary), **sizes)
    BertModel(config).save_pretrained(folder)


def write_vit(folder: Path) -> None:
    """A random ViT of three layers, whose tokens have as many numbers as its patches: 4 · 4 · 3 =
    48.
    """
    torch.manual_seed(1)
    config = ViTConfig(image_size=16, patch_size=4, hidden_size=48, **SIZES)
    ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
