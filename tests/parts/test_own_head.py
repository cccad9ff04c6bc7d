"""`layer_losses` of models of transformers, against the same model cut off after each layer."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from cudt.models.own_head import layer_losses
from tests.pretrained import CAUSAL, CONFIGS, IMAGE_CONFIGS, changed

ENCODERS = ("bert", "distilbert", "albert", "modernbert", "deberta-v2")
FAMILIES = {
    "SequenceClassification": (*ENCODERS, "gpt2", "llama"),
    "TokenClassification": ("bert", "roberta", "gpt2"),
    "CausalLM": ("gpt2", "llama", "opt", "gemma"),
    "MaskedLM": ("bert",),
    "ImageClassification": ("vit",),
}


def model_of(head: str, family: str) -> Any:
    torch.manual_seed(0)
    known = {**CONFIGS, **CAUSAL, **IMAGE_CONFIGS}[family]
    # Weights larger than usual, so that layers and losses differ clearly.
    config = changed(known, initializer_range=0.3, pad_token_id=0, num_labels=3)
    return getattr(transformers, f"AutoModelFor{head}").from_config(config).eval()


def batch_of(head: str) -> dict[str, Tensor]:
    """Three texts of five, seven and nine tokens, or three pictures."""
    generator, classes = torch.Generator().manual_seed(0), torch.tensor([2, 0, 1])
    if head == "ImageClassification":
        return {"pixel_values": torch.randn(3, 3, 16, 16, generator=generator), "labels": classes}
    mask = (torch.arange(9) < torch.tensor([[5], [7], [9]])).long()
    tokens = torch.randint(5, 40, (3, 9), generator=generator) * mask
    words = torch.where(mask.bool() & (torch.arange(9) % 4 > 0), tokens, -100)
    of_tokens = torch.where(words < 0, words, words % 3)
    labels = {"SequenceClassification": classes, "TokenClassification": of_tokens}
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels.get(head, words)}


def truncated(model: Any, depth: int) -> Any:
    """The same model with its first layers only, built by transformers with the same weights."""
    names = ("n_layers", "n_layer", "num_hidden_layers")
    config = copy.deepcopy(model.config)
    setattr(config, next(name for name in names if name in config.to_dict()), depth)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:depth]
    shorter = type(model)(config)
    missing, _ = shorter.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    return shorter.train(model.training)


@pytest.mark.parametrize("head", FAMILIES)
def test_each_layers_loss_and_gradient_are_those_of_the_model_that_ends_there(head):
    for family in FAMILIES[head]:
        model, batch = model_of(head, family), batch_of(head)
        losses = layer_losses(model, batch)
        assert torch.equal(losses[-1], model(**batch).loss)
        assert len({round(loss, 4) for loss in losses.tolist()}) == 3
        for depth in (1, 2, 3):
            shorter = truncated(model, depth)
            expected = shorter(**batch).loss
            assert losses[depth - 1].item() == pytest.approx(expected.item(), rel=1e-5), family
            expected.backward()
            model.zero_grad()
            losses[depth - 1].backward(retain_graph=True)
            ours = dict(model.named_parameters())
            for name, weight in shorter.named_parameters():
                if weight.grad is not None:
                    assert torch.allclose(ours[name].grad, weight.grad, atol=1e-5), name


@pytest.mark.parametrize("family", ["bert", "albert", "llama", "gpt2"])
def test_embeddings_and_layers_are_computed_once_whatever_their_number(family):
    model, batch = model_of("SequenceClassification", family), batch_of("SequenceClassification")
    layer_losses(model, batch)
    calls: list[int] = []
    embeddings = model.get_input_embeddings()
    embeddings.weight.register_hook(lambda gradient: calls.append(1))
    generator = torch.get_rng_state()
    plain = model.train()(**batch).loss
    head_only = torch.get_rng_state()
    torch.set_rng_state(generator)
    losses = layer_losses(model, batch)
    # With dropout the same draws come first, and the last layer is the model's own loss.
    assert torch.allclose(losses[-1], plain, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), head_only) != (family in ("bert", "albert"))
    losses.sum().backward()
    assert calls == [1]


def test_the_model_is_left_as_it_was_and_not_kept_alive():
    model, batch = model_of("CausalLM", "llama"), batch_of("CausalLM")
    model.model.layers[1].eval()
    model.lm_head.train()
    # transformers leaves hooks of its own behind when it lists hidden states.
    before = model(**batch, output_hidden_states=True).logits

    def state(modules: list[Any]) -> Any:
        return [(one.training, dict(one._forward_hooks), "forward" in vars(one)) for one in modules]

    own, generator = state([*model.modules()]), torch.get_rng_state()
    layer_losses(model, batch)
    assert torch.equal(torch.get_rng_state(), generator)
    assert state([*model.modules()]) == own
    assert torch.equal(model(**batch).logits, before)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_adapters_of_peft_are_trained_through_every_layers_loss():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model_of("CausalLM", "llama"), LoraConfig(task_type="CAUSAL_LM", r=2))
    batch = batch_of("CausalLM")
    losses = layer_losses(model, batch)
    assert torch.equal(losses[-1], model(**batch).loss)
    losses[0].backward()
    weights = model.named_parameters()
    touched = {name for name, one in weights if one.grad is not None and one.grad.any()}
    assert touched
    assert all("layers.0." in name and "lora_B" in name for name in touched)


def test_what_cannot_be_read_is_refused():
    model, batch = model_of("SequenceClassification", "bert"), batch_of("SequenceClassification")
    with pytest.raises(ValueError, match="no 'labels'"):
        layer_losses(model, {"input_ids": batch["input_ids"]})
    layer_losses(model, batch)
    model.bert.encoder.layer = model.bert.encoder.layer[:2]
    with pytest.raises(ValueError, match="called 2 of its 3 layers"):
        layer_losses(model, batch)
