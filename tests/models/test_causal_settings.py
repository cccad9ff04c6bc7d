"""Causal models in training: checkpointing, precision, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cudt.config.models import Lora
from cudt.config.schema import NamedSection
from cudt.models import causal
from cudt.models.causal import Config
from cudt.models.causal_network import Causal
from cudt.models.layer_losses import LayerwiseLosses
from cudt.utils.errors import UserError
from tests.causal import (
    CONFIGS,
    REFUSED,
    ROWS,
    batch_of,
    build,
    instructions,
    save_causal,
    with_adapters_that_do_something,
)
from tests.pretrained import tiny_llama, tiny_pretrained

#: A weight for each layer, so that no layer's gradient hides in another's.
WEIGHTS = torch.tensor([0.5, -1.0, 2.0])
TRAINED = {
    "lora": Lora(rank=2, dropout=0.0),
    "lora with dropout": Lora(rank=2, dropout=0.3),
    "full": None,
}
trained = pytest.mark.parametrize("lora", TRAINED.values(), ids=TRAINED)


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> str:
    return tiny_llama(tmp_path_factory.mktemp("pretrained") / "llama")


def losses_and_gradients(model: Causal, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
    layerwise = LayerwiseLosses(with_adapters_that_do_something(model), instructions()).train(
        training
    )
    torch.manual_seed(3)
    losses = layerwise(batch_of(ROWS), 0.3 * torch.randn(3, 9, 16))
    (WEIGHTS @ losses).sum().backward()
    return losses.detach(), {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }


# ---------------------------------------------------------------- gradient checkpointing


@trained
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_checkpointing_changes_no_loss_and_no_gradient_at_any_layer(llama, lora, training):
    losses, gradients = losses_and_gradients(build(llama, lora=lora), training)
    again, others = losses_and_gradients(
        build(llama, lora=lora, gradient_checkpointing=True), training
    )
    assert torch.allclose(again, losses, atol=1e-6)
    assert (
        set(others)
        == set(gradients)
        == {
            name
            for name, weight in build(llama, lora=lora).named_parameters()
            if weight.requires_grad
        }
    )
    for name, gradient in gradients.items():
        assert torch.allclose(others[name], gradient, atol=1e-5), name


@trained
def test_checkpointing_computes_each_layer_again_in_the_backward_pass_and_not_in_evaluation(
    llama, lora
):
    for checkpointing, training, again in [(True, True, 3), (True, False, 0), (False, True, 0)]:
        model = build(llama, lora=lora, gradient_checkpointing=checkpointing).train(training)
        calls: list[int] = []
        for layer in model._backbone[0].layers:
            layer.self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        losses = LayerwiseLosses(model, instructions())(batch_of(ROWS))
        assert len(calls) == 3
        losses.sum().backward()
        assert len(calls) == 3 + again


# ---------------------------------------------------------------- precision


def test_weights_in_bf16_have_adapters_and_losses_in_fp32(llama):
    model = build(llama, lora=Lora(rank=2), dtype="bf16")
    kinds = {("lora_" in name, weight.dtype) for name, weight in model.named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    layerwise = LayerwiseLosses(model, instructions())
    losses, exact = (
        layerwise(batch_of(ROWS)),
        LayerwiseLosses(build(llama), instructions())(batch_of(ROWS)),
    )
    assert losses.dtype == torch.float32
    assert torch.allclose(losses, exact, rtol=0.05)
    losses.sum().backward()
    grads = [weight.grad for weight in model.parameters() if weight.requires_grad]
    assert all(grad is not None and grad.dtype == torch.float32 for grad in grads)
    judged, scores = layerwise.judge(batch_of(ROWS))
    assert judged.dtype == torch.float64
    assert torch.allclose(judged.float(), losses, rtol=1e-5)
    assert ((scores >= 0) & (scores <= 1)).all()


def test_a_whole_model_is_not_trained_in_bf16(llama):
    with pytest.raises(ValueError, match="to train all weights, dtype must be fp32"):
        build(llama, lora=None, dtype="bf16")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("family", list(REFUSED))
def test_what_scales_or_caps_its_logits_is_refused(tmp_path, family):
    folder = save_causal(tmp_path, REFUSED[family])
    with pytest.raises(UserError, match=f"model '{folder}': .* is more than one linear map"):
        build(folder)


def test_an_encoder_has_no_head_to_read_with(tmp_path):
    with pytest.raises(UserError, match=r"\d+ weights of BertLMHeadModel do not fit"):
        build(tiny_pretrained(tmp_path, "bert"))


@pytest.mark.parametrize("task", ["text", "imdb", "reviews"])
def test_another_task_than_instructions_is_refused(llama, task):
    with pytest.raises(UserError, match=f"task.name = '{task}': model causal answers instructions"):
        causal.check(Config(name="causal", pretrained=llama), NamedSection(name=task), None)


def test_more_tokens_than_there_are_positions_are_refused(tmp_path):
    """GPT-2 has a vector for each of 128 positions and none for the next."""
    folder = save_causal(tmp_path, CONFIGS["gpt2"])
    assert build(folder, max_length=128).n_layers == 3
    with pytest.raises(UserError, match=r"task\.max_length = 129"):
        build(folder, max_length=129)
