from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from transformers import AutoModelForCausalLM

from cudt.config.models import Lora
from cudt.data import hub
from cudt.models.causal_network import Causal
from cudt.models.layer_losses import LayerwiseLosses, draw_noise
from cudt.noise import NoiseSource
from cudt.tasks.base import IGNORED
from tests.causal import (
    CONFIGS,
    ROWS,
    batch_of,
    build,
    instructions,
    logits,
    plain,
    save_causal,
    states_of,
    with_adapters_that_do_something,
)
from tests.pretrained import tiny_llama

families = pytest.mark.parametrize("family", list(CONFIGS))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pretrained")
    llamas = {
        name: tiny_llama(root / name, tie_word_embeddings=name == "llama")
        for name in ("llama", "llama-untied")
    }
    return {
        **llamas,
        **{name: save_causal(root / name, config) for name, config in CONFIGS.items() if config},
    }


# ---------------------------------------------------------------- layers and readout


@families
@torch.no_grad()
def test_layer_states_are_those_that_the_library_lists_and_the_norm_belongs_to_the_readout(
    folders, family
):
    model, batch = build(folders[family]), batch_of(ROWS)
    expected, states = plain(folders[family], batch), states_of(model, batch)
    assert len(states) == model.n_layers == 3
    real = batch["attention_mask"].bool()
    for state, listed in zip(states[:-1], expected.hidden_states[1:-1], strict=True):
        assert torch.allclose(state[real], listed[real], atol=1e-5)
    # What the library lists last has gone through its final norm already.
    assert torch.allclose(
        model.normed(states[-1])[real], expected.hidden_states[-1][real], atol=1e-5
    )
    assert not torch.allclose(states[-1][real], expected.hidden_states[-1][real], atol=1e-2)


@families
@torch.no_grad()
def test_the_last_layers_logits_are_the_plain_models_at_the_tokens_that_count(folders, family):
    model, batch = build(folders[family]), batch_of(ROWS)
    answer = logits(model, states_of(model, batch)[-1], batch)
    expected = plain(folders[family], batch).logits[batch["labels"] != IGNORED]
    assert answer.shape == (6 + 3 + 8, 258)
    assert torch.allclose(answer, expected, atol=1e-5)


@families
@torch.no_grad()
def test_every_layer_is_read_as_if_it_were_the_last(folders, family):
    model, batch = build(folders[family]), batch_of(ROWS)
    library = AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float32).eval()
    decoder, counts = library.get_decoder(), batch["labels"] != IGNORED
    norm = next(
        getattr(decoder, name)
        for name in ("norm", "ln_f", "final_layer_norm")
        if hasattr(decoder, name)
    )
    for state in states_of(model, batch):
        expected = library.get_output_embeddings()(norm(state[counts]))
        assert torch.allclose(logits(model, state, batch), expected, atol=1e-5)


@families
@torch.no_grad()
def test_noise_enters_at_the_look_up_as_if_the_embeddings_were_given(folders, family):
    model, batch = build(folders[family]), batch_of(ROWS)
    clean, _ = model.signal(batch)
    noisy = clean + draw_noise(model, batch, NoiseSource("gaussian", 0.5, 0))
    expected = plain(folders[family], batch, inputs_embeds=noisy).logits[batch["labels"] != IGNORED]
    answer = logits(model, model.layer_states(noisy, batch)[-1], batch)
    assert torch.allclose(answer, expected, atol=1e-5)
    assert not torch.allclose(answer, logits(model, states_of(model, batch)[-1], batch), atol=1e-2)


@families
@torch.no_grad()
def test_padding_changes_no_answer_at_any_layer(folders, family):
    model = build(folders[family])
    batch, wider, alone = batch_of(ROWS), batch_of(ROWS, extra=5), batch_of(ROWS[1:2])
    answers, wide, single = (
        torch.stack([logits(model, state, given) for state in states_of(model, given)])
        for given in (batch, wider, alone)
    )
    assert torch.allclose(answers, wide, atol=1e-5)
    assert torch.allclose(answers[:, 6:9], single, atol=1e-5)


# ---------------------------------------------------------------- what is learned


def learned(model: Causal) -> dict[str, Tensor]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("family", ["llama", "llama-untied"])
@pytest.mark.parametrize("targets", ["all-linear", "default", ["q_proj"]])
def test_lora_learns_the_adapters_alone(folders, family, targets):
    model = build(folders[family], lora=Lora(rank=3, targets=targets))
    assert all("lora_" in name for name in learned(model))
    assert not model.signal_is_learned
    assert not model.signal(batch_of(ROWS))[0].requires_grad
    # Inputs and outputs of q, k, v, o, gate, up, down; of q and v; or of q alone.
    linear = {"all-linear": 32 + 24 + 24 + 32 + 48 + 48 + 48, "default": 32 + 24}.get(
        str(targets), 32
    )
    assert sum(weight.numel() for weight in learned(model).values()) == 3 * 3 * linear


def test_full_fine_tuning_learns_every_weight_once(folders):
    for family in ("llama", "llama-untied"):
        model = build(folders[family])
        library = AutoModelForCausalLM.from_pretrained(folders[family])
        assert sum(weight.numel() for weight in learned(model).values()) == library.num_parameters()
        assert model.signal_is_learned
        assert model.signal(batch_of(ROWS))[0].requires_grad


@torch.no_grad()
def test_an_adapter_adds_alpha_over_rank_times_the_product_of_its_halves(folders):
    model = with_adapters_that_do_something(
        build(folders["llama"], lora=Lora(rank=3, alpha=5.0, dropout=0.25))
    )
    config = model.lm.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (3, 5.0, 0.25)
    batch = batch_of(ROWS)
    library = AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.float32).eval()
    halves = dict(model.named_parameters())
    for name in [name for name in halves if "lora_A" in name]:
        place = name.removeprefix("lm.base_model.model.").removesuffix(".lora_A.default.weight")
        update = halves[name.replace("lora_A", "lora_B")] @ halves[name]
        library.get_submodule(place).weight += 5 / 3 * update
    expected = library(**{key: batch[key] for key in ("input_ids", "attention_mask")}).logits
    answer = logits(model, states_of(model, batch)[-1], batch)
    assert torch.allclose(answer, expected[batch["labels"] != IGNORED], atol=1e-4)
    assert not torch.allclose(
        answer, plain(folders["llama"], batch).logits[batch["labels"] != IGNORED], atol=1e-2
    )


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_learned_weights_go_through_a_file_and_each_is_there_once(folders, lora):
    for family in ("llama", "llama-untied"):
        layerwise = LayerwiseLosses(build(folders[family], lora=lora), instructions())
        weights = layerwise.learned_weights()
        own = learned(build(folders[family], lora=lora))
        assert {name.removeprefix("model.") for name in weights} == set(own)
        file = save({name: torch.randn_like(value) * 0.2 for name, value in weights.items()})
        layerwise.load_learned_weights(load(file))
        again = LayerwiseLosses(build(folders[family], lora=lora), instructions())
        before = again.judge(batch_of(ROWS))[0]
        again.load_learned_weights(load(file))
        assert torch.equal(again.judge(batch_of(ROWS))[0], layerwise.judge(batch_of(ROWS))[0])
        assert not torch.allclose(again.judge(batch_of(ROWS))[0], before, atol=1e-2)


def test_an_adapter_stores_the_version_of_its_base_model(folders, monkeypatch, tmp_path):
    """peft loads that version with the adapter. The folder stands for a model of the hub."""
    of_folder = hub.load_causal_lm
    monkeypatch.setattr(hub, "load_causal_lm", lambda name, *rest: of_folder(str(name), *rest))
    model = build(folders["llama"], lora=Lora(), revision="v1")
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["revision"] == "v1"
