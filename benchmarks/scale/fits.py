"""What fits on a GPU, how many GPUs share what does not, and when they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.scale import formulas, machines
from benchmarks.scale.machines import Precision
from benchmarks.scale.memory import KeptModel
from benchmarks.scale.shapes import PAPER, Shape
from benchmarks.scale.traffic import Way, bytes_sent

#: Adam's moments, always in fp32.
_MOMENTS = 8
_GRADIENT = 4


@dataclass(frozen=True)
class Setup:
    """A batch of a recipe, and the number format of what does not learn."""

    name: str
    shape: Shape
    bytes: int = 4
    """Of a weight and of a kept number; gradients, moments and trained weights are in fp32."""

    @property
    def weights(self) -> float:
        found = formulas.weights(self.shape)
        return 4 * found.trained + self.bytes * (found.all - found.trained)

    @property
    def learning(self) -> float:
        """Gradients and moments."""
        return (_GRADIENT + _MOMENTS) * formulas.weights(self.shape).trained

    def work(self, model: KeptModel) -> float:
        """Kept for the backward pass, and its work space."""
        return self.bytes / 4 * model.work(self.shape)

    def total(self, model: KeptModel) -> float:
        return self.weights + self.learning + self.work(model)

    def sharded(self, model: KeptModel, gpus: int) -> float:
        """Bytes on each of N GPUs with one example on each; with FSDP on more than one.

        Weights, gradients and moments are shared. Two layers and the embeddings with the head are gathered, and in the
        backward pass the gradients of one layer, of the embeddings and of the head are whole before they are scattered.
        """
        alone = replace(self, shape=replace(self.shape, examples=1))
        if gpus == 1:
            return alone.total(model)
        found = formulas.weights(self.shape)
        outside = found.outside(self.shape.layers)
        trained_outside = 0 if self.shape.lora else outside
        gradients = trained_outside + (found.trained - trained_outside) / self.shape.layers
        gathered = self.bytes * (2 * found.in_a_layer + outside) + _GRADIENT * gradients
        return (self.weights + self.learning) / gpus + gathered + alone.work(model)

    def fewest(self, model: KeptModel, memory: float) -> int | None:
        """The fewest GPUs of a node's powers of two on which it fits; None if 512 do not suffice."""
        counts = (2**power for power in range(10))
        return next((n for n in counts if self.sharded(model, n) <= machines.USABLE * memory), None)


def _batch(name: str, examples: int, **changes: int | bool) -> Shape:
    return replace(PAPER[name], examples=examples, **changes)  # type: ignore[arg-type]


SETUPS = [
    Setup("imdb-ut, 9 layers", _batch("ut", 16, layers=9)),
    Setup("imdb-distilbert", _batch("distilbert", 16)),
    Setup("imdb-bert", _batch("bert", 16)),
    Setup("imdb-roberta", _batch("roberta", 16)),
    Setup("mnli-roberta", _batch("roberta", 16, tokens=128)),
    Setup("ucsd-dust, 7 layers", _batch("dust", 8, layers=7)),
    Setup("ucsd-vit", _batch("vit", 8)),
    Setup("alpaca-llama", _batch("llama", 4)),
    Setup("alpaca-llama, model.dtype=bf16", _batch("llama", 4), 2),
    Setup("Llama 8B, all weights", _batch("llama", 4, lora=False)),
]
LARGE = [
    Setup("Llama 8B, LoRA, bf16", _batch("llama", 1), 2),
    Setup("Llama 8B, all weights in fp32", _batch("llama", 1, lora=False)),
    Setup("Llama 70B, LoRA, bf16", _batch("llama-70b", 1), 2),
    Setup("Llama 70B, LoRA, fp32", _batch("llama-70b", 1)),
    Setup("Llama 70B, all weights in fp32", _batch("llama-70b", 1, lora=False)),
]


@dataclass(frozen=True)
class Shared:
    """An update that N GPUs share."""

    name: str
    way: Way
    shape: Shape
    precision: Precision
    layers: int = 4
    """Bytes of a number of a layer that FSDP gathers."""
    outside: int = 4
    """Bytes of a number of the embeddings and the head."""

    def sent(self, gpus: int) -> float:
        """Bytes that each of N GPUs sends."""
        return bytes_sent(self.way, self.shape, gpus, layers=self.layers, outside=self.outside)

    @property
    def seconds(self) -> float:
        """The time of an update on one GPU."""
        return formulas.operations(self.shape).update(self.shape.layers) / self.precision.speed

    def share(self, gpus: int, link: float) -> float:
        """The share of a step that is communication, if nothing overlaps."""
        sending = self.sent(gpus) / link
        return sending / (sending + self.seconds / gpus)

    def reaches(self, share: float, link: float) -> int | None:
        """The fewest GPUs at which communication takes a share of a step; None if all that the batch allows do not."""
        return next((n for n in range(2, self.shape.examples + 1) if self.share(n, link) >= share), None)

    def tokens(self, gpus: int, link: float) -> float:
        """Tokens of an update at which sending takes half of a step."""
        return self.sent(gpus) / link * gpus / self.seconds * self.shape.examples * self.shape.tokens


def shared(tokens: int, instruction: int, read: int) -> list[Shared]:
    """ViT, RoBERTa and Llama 8B at the mean length of their padded batches; FSDP with 8 examples, one on each of 8."""
    vit, roberta = _batch("vit", 8), _batch("roberta", 16, tokens=tokens)
    llama = _batch("llama", 4, tokens=instruction, read=read)
    eight = replace(llama, examples=8)
    return [
        Shared("shanghaitech-vit, DDP", "ddp", vit, machines.FP32),
        Shared("shanghaitech-vit, DDP", "ddp", vit, machines.BF16),
        Shared("imdb-roberta, DDP", "ddp", roberta, machines.FP32),
        Shared("imdb-roberta, DDP", "ddp", roberta, machines.BF16),
        Shared("alpaca-llama, DDP", "ddp", llama, machines.FP32),
        Shared("alpaca-llama, DDP", "ddp", llama, machines.BF16),
        Shared("alpaca-llama, FSDP", "fsdp", eight, machines.FP32),
        # model.dtype: bf16 stores all but the adapters in two bytes.
        Shared("alpaca-llama, FSDP", "fsdp", eight, machines.BF16, 2, 2),
        # training.precision: bf16 gathers the layers in two bytes; embeddings and head stay in four.
        Shared("Llama 8B, all weights, FSDP", "fsdp", replace(eight, lora=False), machines.BF16, 2),
    ]
