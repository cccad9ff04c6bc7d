"""Causal language models: what is learned, gradient checkpointing, bf16, thinned labels, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from cudt.config.models import Lora
from cudt.models.causal import Causal
from cudt.models.layer_losses import LayerwiseLosses
from cudt.utils.errors import UserError
from tests.pretrained import (
    REFUSED,
    ROWS,
    batch_of,
    build_causal,
    instructions,
    save_causal,
    tiny_llama,
    with_adapters_that_do_something,
)

BATCH = batch_of(ROWS, causal=True)
#: A weight for each layer, so that no layer's gradient hides in another's.
WEIGHTS = torch.tensor([0.5, -1.0, 2.0])
TRAINED = {"lora": Lora(rank=2, dropout=0.3), "full": None}
trained = pytest.mark.parametrize("lora", TRAINED.values(), ids=TRAINED)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pretrained")
    return {
        name: tiny_llama(root / name, tie_word_embeddings=name == "tied")
        for name in ("tied", "untied")
    }


def losses_and_gradients(model: Causal, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
    layerwise = LayerwiseLosses(with_adapters_that_do_something(model), instructions())
    torch.manual_seed(3)
    losses = layerwise.train(training)(BATCH, lambda *_: 0.3 * torch.randn(3, 9, 16))
    (WEIGHTS @ losses).sum().backward()
    named = model.named_parameters()
    return losses.detach(), {name: one.grad for name, one in named if one.grad is not None}


def test_full_fine_tuning_learns_every_weight_once(folders):
    for name in ("tied", "untied"):
        model = build_causal(folders[name])
        library = AutoModelForCausalLM.from_pretrained(folders[name])
        learned = LayerwiseLosses(model, instructions()).learned_weights().values()
        assert sum(weight.numel() for weight in learned) == library.num_parameters()
        # A head that is also the embedding has no learning rate of its own.
        assert len(model.readout_weights()) == (name == "untied")
    adapted = build_causal(folders["untied"], lora=Lora(rank=2))
    assert not adapted.signal_is_learned
    assert adapted.readout_weights() == []


@trained
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_checkpointing_changes_no_loss_and_no_gradient_at_any_layer(folders, lora, training):
    plain, recomputed = (
        build_causal(folders["tied"], lora=lora, gradient_checkpointing=recomputes)
        for recomputes in (False, True)
    )
    calls: list[int] = []
    for layer in recomputed.layer_modules():
        layer.get_submodule("self_attn").register_forward_hook(lambda *_: calls.append(1))
    (losses, gradients), (again, others) = (
        losses_and_gradients(model, training) for model in (plain, recomputed)
    )
    assert torch.allclose(again, losses, atol=1e-6)
    assert gradients.keys() == others.keys()
    assert all(torch.allclose(gradients[name], others[name], atol=1e-5) for name in gradients)
    # Each layer is computed again in the backward pass, but not in evaluation.
    assert len(calls) == (6 if training else 3)


def test_weights_in_bf16_have_adapters_and_losses_in_fp32(folders):
    model = build_causal(folders["tied"], lora=Lora(rank=2), dtype="bf16")
    kinds = {("lora_" in name, weight.dtype) for name, weight in model.named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    layerwise = LayerwiseLosses(model, instructions())
    losses = layerwise(BATCH)
    assert losses.dtype == torch.float32
    exact = LayerwiseLosses(build_causal(folders["tied"]), instructions())(BATCH)
    assert torch.allclose(losses, exact, rtol=0.05)
    losses.sum().backward()
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    assert all(one.grad is not None and one.grad.dtype == torch.float32 for one in learned)


@pytest.mark.parametrize("family", list(REFUSED))
def test_what_scales_or_caps_its_logits_is_refused(tmp_path, family):
    folder = save_causal(tmp_path, REFUSED[family])
    with pytest.raises(UserError, match=f"model '{folder}': .* is not one matrix"):
        build_causal(folder)
