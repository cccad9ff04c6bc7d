"""Low-rank adapters of encoders and vision transformers; test_causal.py has those of causal
models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cudt.config.models import Lora
from cudt.data.loader import Batch
from cudt.models import encoder, vit
from cudt.models.layer_losses import LayerwiseLosses
from cudt.utils.errors import UserError
from tests import shapes
from tests.models.test_encoder import PADDED, text_task
from tests.models.test_encoder import batch_of as texts_of
from tests.pretrained import tiny_pretrained, tiny_vision

TEXT = ("bert", "deberta-v2", "albert", "modernbert", "distilbert")
IMAGES = ("vit direct", "vit linear", "dinov2 linear")
RANK_2 = Lora(rank=2, alpha=3.0, dropout=0.25)
every = pytest.mark.parametrize("family", [*TEXT, *IMAGES])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Models by family; those with a linear readout have tokens that are narrower than their
    patches."""
    root = tmp_path_factory.mktemp("pretrained")
    made = {family: tiny_pretrained(root / family, family) for family in TEXT}
    for name in IMAGES:
        family, readout = name.split()
        width: dict[str, Any] = {"hidden_size": 32} if readout == "linear" else {}
        made[name] = tiny_vision(root / name, family, **width)
    return made


def build(
    folders: dict[str, str], family: str, lora: Lora | None = RANK_2, seed: int = 0
) -> LayerwiseLosses:
    """A model with its task; new weights are drawn from a seed."""
    torch.manual_seed(seed)
    common: dict[str, Any] = {"pretrained": folders[family], "lora": lora}
    if family in TEXT:
        task = text_task(folders[family], 32)
        return LayerwiseLosses(
            encoder.build(encoder.Config(name="encoder", readout="mean", **common), task, None),
            task,
        )
    videos = shapes.tiny_videos()
    common["readout"] = family.split()[1]
    return LayerwiseLosses(vit.build(vit.Config(name="vit", **common), videos, None), videos)


def batch_for(family: str) -> Batch:
    if family in TEXT:
        return texts_of(PADDED)
    videos = shapes.tiny_videos()
    return videos.collate(videos.examples("train"))


def updated(layerwise: LayerwiseLosses, family: str, steps: int = 3) -> None:
    """Train for a few updates on the losses of all layers."""
    learned = [weight for weight in layerwise.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=1e-2)
    for _ in range(steps):
        layerwise.train()(batch_for(family)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def weights(layerwise: LayerwiseLosses, *, learned: bool) -> dict[str, Tensor]:
    pairs = layerwise.named_parameters()
    return {
        name: weight.detach().clone() for name, weight in pairs if weight.requires_grad == learned
    }


@every
def test_only_adapters_and_the_readout_are_trained_and_all_of_them_get_gradients(folders, family):
    layerwise = build(folders, family)
    updated(layerwise, family)
    layerwise.train()(batch_for(family)).mean().backward()
    trained = {name for name, weight in layerwise.named_parameters() if weight.requires_grad}
    assert {name for name in trained if "lora_" not in name} == (
        set() if family == "vit direct" else {"model.head.weight", "model.head.bias"}
    )
    assert any("lora_" in name for name in trained)
    gradients = {name: weight.grad for name, weight in layerwise.named_parameters()}
    assert {name for name, gradient in gradients.items() if gradient is not None} == trained
    assert all(gradient.abs().max() > 0 for gradient in gradients.values() if gradient is not None)


@every
@torch.no_grad()
def test_the_first_forward_pass_is_that_of_the_model_without_adapters_bit_for_bit(folders, family):
    """Of the same seed, so that the readouts start alike."""
    adapted, whole = (build(folders, family, lora).eval() for lora in (RANK_2, None))
    assert torch.equal(adapted(batch_for(family)), whole(batch_for(family)))


@every
def test_updates_move_every_adapter_and_no_fixed_weight(folders, family):
    layerwise = build(folders, family)
    fixed, learned = weights(layerwise, learned=False), weights(layerwise, learned=True)
    before = layerwise.eval()(batch_for(family)).detach()
    digest = layerwise.frozen_digest()
    updated(layerwise, family)
    assert layerwise.frozen_digest() == digest
    assert all(
        torch.equal(weight, fixed[name])
        for name, weight in weights(layerwise, learned=False).items()
    )
    assert not any(
        torch.equal(weight, learned[name])
        for name, weight in weights(layerwise, learned=True).items()
    )
    assert (layerwise.eval()(batch_for(family)) != before).any(1).all(), (
        "every layer answers otherwise"
    )


@every
@torch.no_grad()
def test_learned_weights_are_adapters_and_readout_and_restore_the_model(folders, family):
    layerwise = build(folders, family)
    with torch.enable_grad():
        updated(layerwise, family)
    learned = layerwise.learned_weights()
    assert learned.keys() == weights(layerwise, learned=True).keys()
    again = build(folders, family, seed=7)
    again.load_learned_weights(learned)
    batch = batch_for(family)
    assert torch.equal(again.eval()(batch), layerwise.eval()(batch))


@every
@torch.no_grad()
def test_an_adapter_adds_its_scaled_product_to_the_matrix_of_its_layer(folders, family):
    """The oracle: the model without adapters, with W + alpha/rank · B·A in place of W."""
    layerwise = build(folders, family)
    with torch.enable_grad():
        updated(layerwise, family)
    merged = build(folders, family, None)
    own = {
        name.replace("base_model.model.", "").replace("base_layer.", ""): weight
        for name, weight in layerwise.named_parameters()
    }
    for name, weight in merged.named_parameters():
        weight.copy_(own[name])
        module = name.removesuffix(".weight")
        if f"{module}.lora_A.default.weight" in own:
            halves = [own[f"{module}.lora_{half}.default.weight"] for half in "BA"]
            weight.add_(halves[0] @ halves[1], alpha=3.0 / 2)
    batch = batch_for(family)
    assert torch.allclose(merged.eval()(batch), layerwise.eval()(batch), rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "targets", "adapted"),
    [
        ("bert", "default", {"query", "value"}),
        ("bert", ["key"], {"key"}),
        ("vit linear", ["q_proj"], {"q_proj"}),
        ("dinov2 linear", ["fc1", "fc2"], {"fc1", "fc2"}),
    ],
)
def test_targets_say_which_modules_get_adapters(folders, family, targets, adapted):
    names = weights(build(folders, family, Lora(rank=2, targets=targets)), learned=True)
    assert {name.split(".lora_")[0].split(".")[-1] for name in names if "lora_" in name} == adapted


@pytest.mark.parametrize(
    ("family", "targets", "reason"),
    [
        ("bert", ["nowhere"], r"model '\S+', BertModel: Target modules .*nowhere.* not found"),
        (
            "bert",
            ["query", "word_embeddings"],
            r"^model\.lora\.targets: '\S+word_embeddings' is an embedding",
        ),
        ("dinov2 linear", ["nowhere"], r"model '.+', Dinov2Model: Target modules"),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused_in_a_line(folders, family, targets, reason):
    with pytest.raises(UserError, match=reason) as error:
        build(folders, family, Lora(targets=targets))
    assert "\n" not in str(error.value)
