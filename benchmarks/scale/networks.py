"""Random models of the paper's classes in any shape, and one update or evaluation of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn

from benchmarks.scale.shapes import RANK, Shape
from cudt.data.batching import TOKEN_COUNTS, Batch
from cudt.models.base import LayeredModel
from cudt.models.layer_losses import LayerwiseLosses
from cudt.tasks.alpaca import Alpaca
from cudt.tasks.base import IGNORED
from cudt.utils.compat import survive_torchvision_mismatch


class Work:
    """A model, a batch, and what training does with them."""

    def __init__(self, shape: Shape) -> None:
        torch.manual_seed(0)
        survive_torchvision_mismatch()
        model, task, self.batch = _BUILD[shape.family](shape)
        self.layerwise = LayerwiseLosses(model, task).train()
        self.learned = [weight for weight in self.layerwise.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.Adam(self.learned, lr=1e-5, fused=True)
        self.all = list(range(1, shape.layers + 1))

    def losses(self, readouts: int) -> Tensor:
        """The losses of the last layers in training; a frozen embedding has no gradient, as in training."""
        layers = self.all[-readouts:]
        weights = torch.ones(readouts, 1).expand(readouts, self.layerwise.task.weights(self.batch).shape[0])
        return self.layerwise(self.batch, layers=layers, announced=weights).sum()

    def update(self, readouts: int) -> None:
        """A step of the weights with the losses of the last layers."""
        self.losses(readouts).backward()
        self.step()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate(self) -> None:
        """A forward pass that reads all layers."""
        with torch.no_grad():
            self.layerwise.eval()(self.batch)


class _Classes:
    """Classification without data."""

    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(answer, batch["labels"], reduction="none")

    def weights(self, batch: Batch) -> Tensor:
        return torch.ones(len(batch["labels"]))


class _Frames:
    """Denoising without data."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width

    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        return (answer - batch["frames"]).square().sum((1, 2, 3)) / batch["frames"].shape[1]

    def weights(self, batch: Batch) -> Tensor:
        return torch.ones(len(batch["frames"]))


def _words(shape: Shape) -> Batch:
    tokens = torch.randint(2, shape.words, (shape.examples, shape.tokens))
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": torch.arange(shape.examples) % 2,
        TOKEN_COUNTS: [shape.tokens] * shape.examples,
    }


def _encoder(shape: Shape) -> tuple[LayeredModel, Any, Batch]:
    from transformers import RobertaConfig, RobertaModel

    from cudt.models.encoder_network import Encoder

    # Dropout in attention would take the CPU's kernel that keeps the weights of attention; GPUs have others.
    config = RobertaConfig(
        **_sizes(shape),
        vocab_size=shape.words,
        max_position_embeddings=shape.tokens + 2,
        type_vocab_size=1,
        attention_probs_dropout_prob=0.0,
    )
    return Encoder(RobertaModel(config, add_pooling_layer=False), 2, "first"), _Classes(), _words(shape)


def _vit(shape: Shape) -> tuple[LayeredModel, Any, Batch]:
    from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

    from cudt.models.vit_network import ViT, freeze_unused

    side, length = round((shape.width / 3) ** 0.5), round((shape.tokens - 1) ** 0.5)
    task: Any = _Frames(side * length, side * length)
    config = ViTConfig(**_sizes(shape), image_size=side * length, patch_size=side)
    processor = ViTImageProcessorPil(size={"height": task.height, "width": task.width})
    model = ViT(ViTModel(config, add_pooling_layer=False), processor, task)
    freeze_unused(model)
    return model, task, {"frames": 255 * torch.rand(shape.examples, shape.sequences, task.height, task.width)}


def _sizes(shape: Shape) -> dict[str, int]:
    return {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
    }


def _causal(shape: Shape) -> tuple[LayeredModel, Any, Batch]:
    from transformers import LlamaConfig, LlamaForCausalLM

    from cudt.models.causal import Config
    from cudt.models.causal_network import Causal
    from cudt.models.lora import Lora

    heads = shape.keys * shape.heads // shape.width
    config = LlamaConfig(**_sizes(shape), num_key_value_heads=heads, vocab_size=shape.words, tie_word_embeddings=False)
    lora = Lora(rank=RANK) if shape.lora else None
    settings = Config(name="causal", pretrained="random", lora=lora, gradient_checkpointing=shape.recompute)
    task: Any = Alpaca(dict, SimpleNamespace(pad_token_id=0), shape.tokens)
    batch = _words(shape)
    labels = batch["input_ids"].clone()
    labels[:, shape.read :] = IGNORED
    batch |= {"labels": labels, "labelled": (labels.flatten() != IGNORED).nonzero().squeeze(1)}
    return Causal(LlamaForCausalLM(config), settings), task, batch


def _ut(shape: Shape) -> tuple[LayeredModel, Any, Batch]:
    from cudt.models.unrolled import Config
    from cudt.models.unrolled_network import UnrolledTransformer

    config = Config(name="unrolled", layers=shape.layers, attention_width=shape.inner, tie_layers=shape.tied)
    words = nn.Embedding(shape.words, shape.width)
    return UnrolledTransformer(config, words, shape.tokens, 2), _Classes(), _words(shape)


def _patches(shape: Shape) -> tuple[LayeredModel, Any, Batch]:
    from cudt.models import dust, unrolled_video
    from cudt.models.dust_network import Dust
    from cudt.models.unrolled_video_network import UnrolledVideo

    side = round(shape.width**0.5)
    task: Any = _Frames(side, side * shape.sequences)
    sizes = {"layers": shape.layers, "patch": side, "atoms": round(shape.inner**0.5), "tie_layers": shape.tied}
    model: LayeredModel = (
        Dust(dust.Config(name="dust", **sizes), task)
        if shape.family == "dust"
        else UnrolledVideo(unrolled_video.Config(name="unrolled_video", **sizes), task)
    )
    return model, task, {"frames": 255 * torch.rand(shape.examples, shape.tokens, task.height, task.width)}


_BUILD: dict[str, Callable[[Shape], tuple[LayeredModel, Any, Batch]]] = {
    "encoder": _encoder,
    "vit": _vit,
    "causal": _causal,
    "dust": _patches,
    "ut_video": _patches,
    "ut": _ut,
}
