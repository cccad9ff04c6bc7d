"""Training noise γ·σ_x·ε in other people's loops: on the embeddings of tokens where they are looked
up, or on pixels.

Batches of other people's loops have no ids. The noise of an example depends on (seed, content)
instead, so it is the same in every batch, order and number of processes, as in `cudt train`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cudt.integrations.layers import Inputs
from cudt.models.backbone import unwrapped
from cudt.noise import NoiseSource, SignalShape
from cudt.utils.errors import UserError


class InputNoise:
    """Noise of one kind at a level γ; σ_x is measured, or comes from a checkpoint."""

    def __init__(self, kind: str, gamma: float) -> None:
        self.kind, self.gamma = kind, gamma
        self.sigma_x: float | None = None

    @contextmanager
    def on(self, model: nn.Module, inputs: Inputs, seed: str) -> Iterator[Inputs]:
        """Inside it, a forward pass of the model on the inputs that it yields is noisy."""
        if not self.gamma:
            yield inputs
        elif "pixel_values" in inputs:
            pixels = inputs["pixel_values"]
            yield {**inputs, "pixel_values": pixels + self._for_pixels(pixels, seed)}
        else:
            table = embeddings_of(model)
            noise = self._for_tokens(inputs, table.embedding_dim, seed)
            hook = table.register_forward_hook(lambda module, given, clean: clean + noise.to(clean))
            try:
                yield inputs
            finally:
                hook.remove()

    def _for_pixels(self, pixels: Tensor, seed: str) -> Tensor:
        shape = SignalShape([1] * len(pixels), 1, tuple(pixels.shape[1:]))
        return self._drawn(pixels, shape, seed, pixels.device).squeeze(1).to(pixels)

    def _for_tokens(self, inputs: Inputs, width: int, seed: str) -> Tensor:
        tokens, mask = inputs["input_ids"], _unpadded(inputs)
        rows = [row[kept] for row, kept in zip(tokens, mask, strict=True)]
        shape = SignalShape([len(row) for row in rows], tokens.shape[1], (width,))
        drawn = self._drawn(rows, shape, seed, tokens.device)
        # The draw has its padding at the end; in the batch it may be anywhere.
        placed = torch.zeros_like(drawn)
        placed[mask] = torch.cat([one[: len(row)] for one, row in zip(drawn, rows, strict=True)])
        return placed

    def _drawn(
        self, examples: Iterable[Tensor], shape: SignalShape, seed: str, device: torch.device
    ) -> Tensor:
        assert self.sigma_x is not None, "σ_x is measured before the first update"
        names = [_content(one) for one in examples]
        return self.gamma * NoiseSource(self.kind, self.sigma_x, seed).draw(names, shape, device)


def _content(example: Tensor) -> str:
    """A hash of an example's numbers, which is its name."""
    numbers = example.detach().contiguous().cpu().numpy().tobytes()
    return hashlib.blake2b(numbers, digest_size=16).hexdigest()


def embeddings_of(model: nn.Module) -> nn.Embedding:
    """The table of a model's token embeddings."""
    inner: Any = unwrapped(model)
    table = inner.get_input_embeddings()
    if isinstance(table, nn.Embedding):
        return table
    raise UserError(
        f"{type(inner).__name__} does not look its inputs up in one table of embeddings, so noise "
        "cannot be added to them; set gamma_train to 0"
    )


def _unpadded(inputs: Mapping[str, Any]) -> Tensor:
    """A mask of the positions of a batch that are no padding, (examples, positions)."""
    mask, tokens = inputs.get("attention_mask"), inputs["input_ids"]
    return torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()


@torch.no_grad()
def measured_sigma(model: nn.Module, batches: Iterable[Mapping[str, Any]]) -> float:
    """σ_x: the standard deviation of the clean pixels, or of the embeddings of unpadded tokens.

    Tokens are counted, not looked up one by one: the table is read once.
    """
    moments, counts = torch.zeros(3, dtype=torch.double), torch.zeros(0, dtype=torch.long)
    for batch in batches:
        if "pixel_values" in batch:
            pixels = batch["pixel_values"].flatten(1)
            moments += _moments(pixels, torch.ones(len(pixels)))
        else:
            tokens = batch["input_ids"][_unpadded(batch)].cpu()
            found = tokens.bincount(minlength=embeddings_of(model).num_embeddings)
            counts = found if not len(counts) else counts + found
    if len(counts):
        table = embeddings_of(model)
        for tokens in counts.nonzero().squeeze(1).split(4096):
            moments += _moments(table(tokens.to(table.weight.device)), counts[tokens])
    count, total, squares = moments.tolist()
    return math.sqrt(max(squares / count - (total / count) ** 2, 0.0))


def _moments(rows: Tensor, often: Tensor) -> Tensor:
    """Number, sum and sum of squares of the entries of rows, each of which occurs so often."""
    values = rows.cpu().double()
    entries = values.new_full((len(values),), values.shape[1])
    sums = torch.stack([entries, values.sum(1), values.square().sum(1)])
    return sums @ often.double()
