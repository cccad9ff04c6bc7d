from __future__ import annotations

import pytest
import torch

from cudt.data import hub
from cudt.evaluation.layer_flops import FlopCounts
from cudt.models.encoder import Encoder
from cudt.models.unrolled import Config, UnrolledTransformer
from tests.pretrained import tiny_llama


def batch_of(examples: int, length: int, *, padded: bool):
    mask = torch.ones(examples, length, dtype=torch.long)
    if padded:
        mask[0, -2:] = 0
    tokens = (
        torch.randint(5, 60, (examples, length), generator=torch.Generator().manual_seed(0)) * mask
    )
    return {"input_ids": tokens, "attention_mask": mask}


def product(rows: int, inner: int, columns: int) -> int:
    """A multiplication and an addition for each of the inner numbers of each entry."""
    return 2 * rows * inner * columns


@torch.no_grad()
def counted(model, batch):
    answers: list[torch.Tensor] = []
    flops = FlopCounts(model).visit(model.signal(batch)[0], batch, answers.append)
    plain = [
        model.readout(state, batch) for state in model.layer_states(model.signal(batch)[0], batch)
    ]
    assert torch.equal(torch.stack(answers), torch.stack(plain))
    return flops


def check(flops, layer: int, readout: int):
    assert flops.leaving.tolist() == [n * (layer + readout) for n in (1, 2, 3)]
    assert flops.full == 3 * layer + readout


@pytest.mark.parametrize("padded", [False, True])
def test_unrolled_layers_are_counted_as_by_hand(padded):
    T, d, a = 7, 16, 4
    model = UnrolledTransformer(
        Config(name="unrolled", layers=3, attention_width=a), torch.nn.Embedding(70, d), 10, 2
    ).eval()
    # Y = X W₁ᵀ, Y Yᵀ, softmax(…) X, Z (W₂ + W₂ᵀ).
    layer = product(T, d, a) + product(T, a, T) + product(T, T, d) + product(T, d, d)
    check(counted(model, batch_of(5, T, padded=padded)), layer, product(1, d, 2))


def test_layers_of_llama_are_counted_as_by_hand(tmp_path):
    """Two heads share one key and value head of width 8; three maps in the feed-forward part."""
    T, d, wide, narrow = 9, 16, 32, 8
    model = Encoder(hub.load_encoder(tiny_llama(tmp_path / "m"), None), 2, "mean").eval()
    maps = 2 * product(T, d, d) + 2 * product(T, d, narrow) + 3 * product(T, d, wide)
    flops = counted(model, batch_of(4, T, padded=True))
    # Rotary positions, one product of frequencies and positions, belong to all layers.
    before = flops.leaving[0] - (maps + product(T, d, T) + product(T, T, d) + product(1, d, 2))
    assert 0 <= before < 0.01 * flops.leaving[0]
    steps = flops.leaving.diff().tolist()
    assert steps == [maps + product(T, d, T) + product(T, T, d) + product(1, d, 2)] * 2
