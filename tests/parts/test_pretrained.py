"""What pretrained models share: low-rank adapters, compiled layers, and readouts of encoders."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from cudt.config.models import Lora
from cudt.data import hub
from cudt.data.loader import Batch
from cudt.models import encoder, vit
from cudt.models.encoder import Encoder
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.pretrained import compile_layers
from cudt.tasks.text import Row, TextClassification
from tests.pretrained import (
    ROWS,
    batch_of,
    build_causal,
    instructions,
    tiny_llama,
    tiny_pretrained,
    tiny_vision,
)
from tests.videos import tiny_videos

WORDS = [[2, 30, 40, 38, 3], [2, 46, 34, 3], [2, 50, 51, 33, 41, 35, 3]]
FAMILIES = ("bert", "albert", "vit direct", "dinov2 linear", "llama")
RANK_2 = Lora(rank=2, alpha=3.0, dropout=0.25)
every = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Models by family; those with a linear readout have tokens that are narrower than their patches."""
    root = tmp_path_factory.mktemp("pretrained")
    return {
        "bert": tiny_pretrained(root / "bert", "bert"),
        "albert": tiny_pretrained(root / "albert", "albert"),
        "vit direct": tiny_vision(root / "vit", "vit"),
        "dinov2 linear": tiny_vision(root / "dinov2", "dinov2", hidden_size=32),
        "llama": tiny_llama(root / "llama"),
    }


def build(
    folders: dict[str, str], family: str, lora: Lora | None = RANK_2, seed: int = 0
) -> LayerwiseLosses:
    """A model with its task; new weights are drawn from a seed."""
    torch.manual_seed(seed)
    common: dict[str, Any] = {"pretrained": folders[family], "lora": lora}
    if family == "llama":
        return LayerwiseLosses(build_causal(common["pretrained"], lora=lora), instructions())
    if " " not in family:
        texts = [Row(str(number), ("good film",), number % 2) for number in range(4)]
        tokenizer = hub.load_tokenizer(folders[family], None)
        task = TextClassification(lambda split: texts, [0, 1], tokenizer, 32)
        config = encoder.Config(name="encoder", readout="mean", **common)
        return LayerwiseLosses(encoder.build(config, task, None), task)
    videos = tiny_videos()
    section = vit.Config(name="vit", readout=family.split()[1], **common)  # type: ignore[arg-type]
    return LayerwiseLosses(vit.build(section, videos, None), videos)


def batch_for(family: str) -> Batch:
    if " " not in family:
        is_causal = family == "llama"
        return batch_of(ROWS if is_causal else WORDS, causal=is_causal)
    return tiny_videos().collate(tiny_videos().examples("train"))


def updated(layerwise: LayerwiseLosses, family: str) -> None:
    """Train for a few updates on the losses of all layers."""
    optimizer = torch.optim.Adam(layerwise.parameters(), lr=1e-2)
    for _ in range(3):
        layerwise.train()(batch_for(family)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def weights(layerwise: LayerwiseLosses, *, learned: bool) -> dict[str, Tensor]:
    named = layerwise.named_parameters()
    return {name: one.detach().clone() for name, one in named if one.requires_grad == learned}


@every
def test_only_adapters_and_the_readout_are_trained_and_they_restore_the_model(folders, family):
    layerwise, whole = (build(folders, family, lora).eval() for lora in (RANK_2, None))
    batch = batch_for(family)
    # New adapters change nothing, bit for bit.
    assert torch.equal(layerwise(batch), whole(batch))
    assert layerwise.model.signal_is_learned == (whole.model.signal_is_learned and False)
    fixed, learned = weights(layerwise, learned=False), weights(layerwise, learned=True)
    readout = {name for name in learned if "lora_" not in name}
    has_readout = family not in ("vit direct", "llama")
    assert readout == ({"model.head.weight", "model.head.bias"} if has_readout else set())
    digest = layerwise.frozen_digest()
    updated(layerwise, family)
    assert layerwise.frozen_digest() == digest != whole.frozen_digest()
    now = weights(layerwise, learned=True)
    assert not any(torch.equal(now[name], before) for name, before in learned.items())
    still = weights(layerwise, learned=False)
    assert all(torch.equal(still[name], before) for name, before in fixed.items())
    # Checkpoints hold them alone.
    assert layerwise.learned_weights().keys() == learned.keys()
    again = build(folders, family, seed=7)
    again.load_learned_weights(layerwise.learned_weights())
    assert torch.equal(again.eval()(batch), layerwise.eval()(batch))
    assert (layerwise(batch) != whole(batch)).any(1).all()


@torch.no_grad()
def test_the_mean_is_over_real_tokens_and_the_first_is_the_first(folders):
    state = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))
    for readout in ("first", "mean"):
        model = Encoder(hub.load_model("AutoModel", folders["bert"], None), 2, readout)
        answers = model.readout(state, batch_of(WORDS))
        for row, tokens in enumerate(WORDS):
            pooled = state[row, 0] if readout == "first" else state[row, : len(tokens)].mean(0)
            assert torch.allclose(answers[row], model.head(pooled), atol=1e-6)


@pytest.mark.parametrize(
    ("family", "lora"), [("albert", None), ("llama", RANK_2), ("dinov2 linear", None)]
)
def test_compiled_layers_have_the_same_losses_and_gradients(folders, monkeypatch, family, lora):
    # torch's own compiler takes minutes on a CPU. Code that Dynamo cannot trace is an error.
    traced = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", traced)
    torch.compiler.reset()
    plain, compiled = (build(folders, family, lora).eval() for _ in range(2))
    compile_layers(compiled.model)
    assert all("forward" in vars(layer) for layer in compiled.model.layer_modules())
    assert list(plain.state_dict()) == list(compiled.state_dict())
    losses = [one(batch_for(family)) for one in (plain, compiled)]
    assert torch.allclose(losses[0], losses[1], rtol=1e-5)
    for one in losses:
        one.mean().backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-6)
