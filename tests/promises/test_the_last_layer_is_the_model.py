"""A pretrained model's layer states are the hidden states that transformers lists, and its last
answer is that of the plain model: for every family, with noise, and whatever the padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM

from cudt.config.models import Vit
from cudt.data import hub
from cudt.models import vit
from cudt.models.encoder import Encoder
from cudt.models.pretrained import FIVE_TOKENS, dissect
from cudt.tasks.base import IGNORED
from tests.pretrained import (
    CAUSAL,
    IMAGE_CONFIGS,
    ROWS,
    batch_of,
    build_causal,
    save_causal,
    tiny_pretrained,
    tiny_vision,
)
from tests.videos import batch_of as frames_of
from tests.videos import tiny_videos

WORDS = [[2, 30, 40, 38, 3], [2, 46, 34, 3], [2, 50, 51, 33, 41, 35, 3]]
NAMES = ["distilbert", "roberta", "albert", "deberta-v2", "modernbert", "llama", "gemma", "gpt2"]
every = pytest.mark.parametrize("family", NAMES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Callable[[str], str]:
    """The folder of a family, which is written once."""
    root = tmp_path_factory.mktemp("pretrained")

    def folder(family: str) -> str:
        path = root / family
        if not path.exists():
            if family in CAUSAL:
                return save_causal(path, CAUSAL[family])
            (tiny_vision if family in IMAGE_CONFIGS else tiny_pretrained)(path, family)
        return str(path)

    return folder


def model_of(folder: str, family: str, readout: Any = "first") -> Any:
    torch.manual_seed(0)
    if family in CAUSAL:
        return build_causal(folder)
    return Encoder(hub.load_model("AutoModel", folder, None), n_classes=2, readout=readout).eval()


def batch_for(family: str, extra: int = 0, rows: slice = slice(None)) -> dict[str, Any]:
    is_causal = family in CAUSAL
    return batch_of((ROWS if is_causal else WORDS)[rows], extra, causal=is_causal)


def plain(folder: str, family: str, batch: dict[str, Any], **inputs: Any) -> Any:
    """The output of the library's own model without any hook."""
    loader = AutoModelForCausalLM if family in CAUSAL else AutoModel
    library = loader.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = inputs or {"input_ids": batch["input_ids"]}
    return library(**inputs, attention_mask=batch["attention_mask"], output_hidden_states=True)


def answers(model: Any, batch: Any, signal: Tensor | None = None) -> Tensor:
    """What the readout makes of each layer: logits of classes, or of the next words."""
    clean = model.signal(batch)[0] if signal is None else signal
    read = [model.readout(state, batch) for state in model.layer_states(clean, batch)]
    return torch.stack([one if isinstance(one, Tensor) else one.head(one.states) for one in read])


def expected(model: Any, family: str, output: Any, batch: Any) -> Tensor:
    if family in CAUSAL:
        return output.logits[batch["labels"] != IGNORED]
    return model.head(output.last_hidden_state[:, 0])


@every
@torch.no_grad()
def test_states_are_those_that_the_library_lists_and_the_last_answer_is_the_models(folders, family):
    model, batch = model_of(folders(family), family), batch_for(family)
    output = plain(folders(family), family, batch)
    states = model.layer_states(model.signal(batch)[0], batch)
    assert len(states) == model.n_layers == 3
    real = batch["attention_mask"].bool()
    for state, listed in zip(states[:-1], output.hidden_states[1:-1], strict=True):
        assert torch.allclose(state[real], listed[real], atol=1e-5)
    # What the library lists last has gone through the final norm, if there is one.
    last = output.hidden_states[-1][real]
    assert torch.allclose(model.normed(states[-1])[real], last, atol=1e-5)
    has_norm = family in CAUSAL or family == "modernbert"
    assert torch.allclose(states[-1][real], last, atol=1e-2) != has_norm
    answer = answers(model, batch)[-1]
    assert torch.allclose(answer, expected(model, family, output, batch), atol=1e-5)


@every
@torch.no_grad()
def test_noise_is_added_to_the_embeddings_of_words(folders, family):
    model = model_of(folders(family), family)
    # Without padding: some families count positions from the tokens, which embeddings do not have.
    batch = batch_for(family, rows=slice(2, 3))
    clean = model.signal(batch)[0]
    noisy = clean + 0.3 * torch.randn(clean.shape)
    output = plain(folders(family), family, batch, inputs_embeds=noisy)
    answer = answers(model, batch, noisy)[-1]
    assert torch.allclose(answer, expected(model, family, output, batch), atol=1e-5)
    assert not torch.allclose(answer, answers(model, batch)[-1], atol=1e-3)


@pytest.mark.parametrize("readout", ["first", "mean"])
@every
@torch.no_grad()
def test_padding_changes_no_answer_at_any_layer(folders, family, readout):
    model = model_of(folders(family), family, readout)
    together, wider = (answers(model, batch_for(family, extra)) for extra in (0, 5))
    assert torch.allclose(together, wider, atol=1e-5)
    rows = slice(6, 9) if family in CAUSAL else slice(1, 2)
    alone = answers(model, batch_for(family, rows=slice(1, 2)))
    assert torch.allclose(together[:, rows], alone, atol=1e-5)


@pytest.mark.parametrize("family", IMAGE_CONFIGS)
@torch.no_grad()
def test_states_of_images_are_listed_too_and_the_norm_comes_after_the_last(folders, family):
    config = Vit(name="vit", pretrained=folders(family))
    model = vit.build(config, tiny_videos(), None).eval()
    frames = 128 + 90 * torch.randn(2, 3, 16, 16)
    library = AutoModel.from_pretrained(folders(family)).eval()
    output = library(pixel_values=model.process(frames), output_hidden_states=True)
    states = model.layer_states(frames, frames_of(frames))
    assert model.n_layers == len(states) == 3
    for state, listed in zip(states[:-1], output.hidden_states[1:-1], strict=True):
        assert torch.allclose(state, listed, atol=1e-6)
    # BEiT's only norm belongs to its pooler.
    assert torch.allclose(model.normed(states[-1]), output.last_hidden_state, atol=1e-6)


def test_no_hook_outlives_its_visit(folders):
    model, batch = model_of(folders("bert"), "bert"), batch_for("bert")
    with pytest.raises(ZeroDivisionError):
        model.visit_layers(model.signal(batch)[0], batch, lambda state: 1 / 0)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_single_layer_is_not_taken_for_the_model_around_it(tmp_path):
    folder = tiny_pretrained(tmp_path, "bert", num_hidden_layers=1)
    encoder = hub.load_model("AutoModel", folder, None).eval()
    (layer,) = dissect(encoder, FIVE_TOKENS).layers
    assert layer in (encoder.encoder, encoder.encoder.layer[0])
