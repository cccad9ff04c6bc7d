"""Training noise γ·σ_x·ε in other people's loops, on looked-up embeddings or on pixels.

Their batches have no ids: the noise of an example depends on (seed, content) instead, so it is the
same in every batch, order and number of processes, as in `cudt train`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cudt.integrations.layers import Inputs
from cudt.models.layer_losses import deviation
from cudt.models.own_head import unwrapped
from cudt.noise import NoiseSource
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
            noise = torch.stack([self._drawn(one, one.shape, seed) for one in pixels])
            yield {**inputs, "pixel_values": pixels + noise.to(pixels)}
        else:
            table, tokens, mask = embeddings_of(model), inputs["input_ids"], _unpadded(inputs)
            rows = [one[kept] for one, kept in zip(tokens, mask, strict=True)]
            width = table.embedding_dim
            noise = torch.zeros(*tokens.shape, width, device=tokens.device)
            noise[mask] = torch.cat([self._drawn(row, (len(row), width), seed) for row in rows])
            hook = table.register_forward_hook(lambda module, given, clean: clean + noise.to(clean))
            try:
                yield inputs
            finally:
                hook.remove()

    def _drawn(self, example: Tensor, shape: Sequence[int], seed: str) -> Tensor:
        """γ·σ_x·ε for one example, whose content is its name."""
        assert self.sigma_x is not None, "σ_x is measured before the first update"
        content = example.detach().contiguous().cpu().numpy().tobytes()
        name = hashlib.blake2b(content, digest_size=16).hexdigest()
        source = NoiseSource(self.kind, self.sigma_x, seed)
        return self.gamma * source.draw([name], shape[:1], (1, *shape), device=example.device)[0]


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


def _unpadded(inputs: Inputs) -> Tensor:
    """A mask of the positions of a batch that are no padding, (examples, positions)."""
    mask, tokens = inputs.get("attention_mask"), inputs["input_ids"]
    return torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()


@torch.no_grad()
def measured_sigma(model: nn.Module, batches: Iterable[Inputs]) -> float:
    """σ_x: the standard deviation of the clean pixels, or of the embeddings of unpadded tokens."""

    def clean(batch: Inputs) -> Tensor:
        if "pixel_values" in batch:
            return batch["pixel_values"]
        table = embeddings_of(model)
        return table(batch["input_ids"][_unpadded(batch)].to(table.weight.device))

    return deviation(map(clean, batches))
