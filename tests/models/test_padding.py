"""`known_padding` gives the same states as transformers reading the mask, and leaves transformers unchanged."""

from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from cudt.data import hub
from cudt.data.batching import TOKEN_COUNTS, lengths_of
from cudt.models.encoder_network import Encoder
from cudt.models.padding import known_padding
from tests import causal
from tests.models.test_encoder import FAMILIES, batch_of
from tests.pretrained import tiny_llama, tiny_pretrained
from tests.shadow.device import active, watch

ROWS = [[2, 40, 41, 42, 3], [2, 50, 3]]
DECODERS = ("llama", "qwen2", "gemma", "gpt2", "opt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pretrained")


def model_of(family: str, folder):
    torch.manual_seed(0)
    if family in DECODERS:
        config = causal.CONFIGS[family]
        saved = tiny_llama(folder / family) if config is None else causal.save_causal(folder / family, config)
        return causal.build(saved).eval()
    return Encoder(hub.load_encoder(tiny_pretrained(folder / family, family), None), 2, "first").eval()


@pytest.mark.parametrize("rows", [ROWS, [ROWS[0], ROWS[0][::-1]]], ids=["padded", "unpadded"])
@pytest.mark.parametrize("family", [*FAMILIES, *DECODERS])
@torch.no_grad()
def test_states_are_the_same_to_the_last_bit(folder, family, rows):
    model, batch = model_of(family, folder), batch_of(rows)
    expected, known = (
        model.layer_states(model.signal(batch)[0], given)
        for given in (batch, {**batch, TOKEN_COUNTS: lengths_of(batch)})
    )
    assert all(torch.equal(one, other) for one, other in zip(expected, known, strict=True))


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "llama"])
@torch.no_grad()
def test_the_device_is_not_waited_for(folder, family):
    with active():
        model = model_of(family, folder).to("shadow")
        batch = {
            name: value.to("shadow") if isinstance(value, torch.Tensor) else value
            for name, value in batch_of(ROWS).items()
        }
        signal, _ = model.signal(batch)
        with watch() as told:
            model.layer_states(signal, {**batch, TOKEN_COUNTS: [5, 3]})
        with watch() as asked:
            model.layer_states(signal, batch)
    assert not told.waits, told
    assert asked.waits


def test_transformers_own_masks_are_back_afterwards():
    before = dict(ALL_MASK_ATTENTION_FUNCTIONS)

    def fail() -> None:
        with known_padding({"attention_mask": torch.ones(1, 2), TOKEN_COUNTS: [2]}):
            assert dict(ALL_MASK_ATTENTION_FUNCTIONS) != before
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert dict(ALL_MASK_ATTENTION_FUNCTIONS) == before
