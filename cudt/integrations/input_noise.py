"""Training noise γ·σ_x·ε in other people's loops: on embeddings of tokens where they are looked up,
or on pixels.

Batches of other people's loops have no ids. The noise of an example depends on (seed, epoch,
content) instead, so it is the same in every batch, order and number of processes, as cudt's own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cudt.models.own_head import unwrapped
from cudt.noise import NoiseSource, SignalShape
from cudt.utils.errors import UserError

Inputs = dict[str, Any]


class InputNoise:
    """Noise of one kind at a level γ; σ_x is measured, or comes from a checkpoint."""

    def __init__(self, kind: str, gamma: float) -> None:
        self.kind = kind
        self.gamma = gamma
        self.sigma_x: float | None = None

    @contextmanager
    def on(self, model: nn.Module, inputs: Inputs, seed: str) -> Iterator[Inputs]:
        """Inside it, a forward pass of the model on the inputs that it yields is noisy; at γ = 0
        nothing changes.
        """
        if not self.gamma:
            yield inputs
        elif "pixel_values" in inputs:
            yield {
                **inputs,
                "pixel_values": inputs["pixel_values"]
                + self._on_pixels(inputs["pixel_values"], seed),
            }
        else:
            table = look_up(model)
            noise = self._on_tokens(inputs, table, seed)
            # A head that reads single examples looks up the tokens of one.
            hook = table.register_forward_hook(
                lambda module, given, clean: clean + noise.to(clean)[: len(clean)]
            )
            try:
                yield inputs
            finally:
                hook.remove()

    def _on_pixels(self, pixels: Tensor, seed: str) -> Tensor:
        shape = SignalShape([1] * len(pixels), 1, tuple(pixels.shape[1:]))
        return self._drawn(_ids(pixels), shape, seed, pixels.device).squeeze(1).to(pixels)

    def _on_tokens(self, inputs: Inputs, table: nn.Embedding, seed: str) -> Tensor:
        tokens, mask = inputs["input_ids"], unpadded(inputs)
        lengths = mask.sum(1).tolist()
        ids = _ids([row[kept] for row, kept in zip(tokens, mask, strict=True)])
        shape = SignalShape(lengths, tokens.shape[1], (table.embedding_dim,))
        drawn = self._drawn(ids, shape, seed, tokens.device)
        # The draw has its padding at the end; in the batch it may be anywhere.
        placed = torch.zeros_like(drawn)
        placed[mask] = torch.cat([row[:length] for row, length in zip(drawn, lengths, strict=True)])
        return placed

    def _drawn(self, ids: list[str], shape: SignalShape, seed: str, device: torch.device) -> Tensor:
        assert self.sigma_x is not None, "σ_x is measured before the first update"
        return self.gamma * NoiseSource(self.kind, self.sigma_x, seed).draw(ids, shape, device)


def _ids(examples: Iterable[Tensor]) -> list[str]:
    """A name for the content of each example."""
    return [
        hashlib.blake2b(
            one.detach().contiguous().cpu().numpy().tobytes(), digest_size=16
        ).hexdigest()
        for one in examples
    ]


def look_up(model: nn.Module) -> nn.Embedding:
    """The table of a model's token embeddings."""
    inner: Any = unwrapped(model)
    table = inner.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise UserError(
            f"{type(inner).__name__} does not look its inputs up in one table of embeddings, so "
            "noise cannot be added "
            "to them; set gamma_train to 0"
        )
    return table


def unpadded(inputs: Mapping[str, Any]) -> Tensor:
    """A mask of the positions of a batch that are no padding, (examples, positions)."""
    mask, tokens = inputs.get("attention_mask"), inputs["input_ids"]
    return torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()


@torch.no_grad()
def measured_sigma(model: nn.Module, batches: Iterable[Mapping[str, Any]]) -> float:
    """σ_x: the standard deviation of the clean pixels, or of the embeddings of all unpadded
    tokens.
    """
    moments, counts = torch.zeros(3, dtype=torch.double), None
    for batch in batches:
        if "pixel_values" in batch:
            pixels = batch["pixel_values"].double()
            moments += torch.tensor(
                [pixels.numel(), pixels.sum(), pixels.square().sum()], dtype=torch.double
            )
        else:
            tokens = batch["input_ids"][unpadded(batch)].cpu()
            found = tokens.bincount(minlength=look_up(model).num_embeddings)
            counts = found if counts is None else counts + found
    if counts is not None:
        moments = _embedded(look_up(model), counts)
    count, total, squares = moments.tolist()
    return math.sqrt(max(squares / count - (total / count) ** 2, 0.0))


def _embedded(table: nn.Embedding, counts: Tensor) -> Tensor:
    """Number, sum and sum of squares of all looked up numbers, from how often each token occurs."""
    moments = torch.zeros(3, dtype=torch.double)
    for tokens in counts.nonzero().squeeze(1).split(4096):
        values, often = (
            table(tokens.to(table.weight.device)).cpu().double(),
            counts[tokens].double(),
        )
        sums = torch.stack([values.sum(1), values.square().sum(1)])
        moments += torch.cat([often.sum(0, keepdim=True) * values.shape[1], sums @ often])
    return moments
