from __future__ import annotations

from collections import Counter

import pytest
import torch

from cudt.data import hub
from cudt.data.batching import take
from cudt.models.encoder_network import Encoder
from cudt.models.unrolled import Config
from cudt.models.unrolled_network import UnrolledTransformer
from cudt.models.unrolled_steps import attend
from tests.outside.toys.residual import Residual
from tests.pretrained import CONFIGS, tiny_llama, tiny_pretrained

FAMILIES = [*CONFIGS, "llama", "unrolled"]
LENGTHS = (6, 4, 6, 2, 5, 3)
#: After which layer each of six examples is not needed any more.
LEAVES = torch.tensor([1, 3, 2, 1, 3, 2])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("pretrained")

    def build(family: str):
        torch.manual_seed(0)
        if family == "unrolled":
            return UnrolledTransformer(Config(name="unrolled", layers=3), torch.nn.Embedding(70, 16), 10, 2).eval()
        folder = tiny_llama(root / family) if family == "llama" else tiny_pretrained(root / family, family)
        return Encoder(hub.load_encoder(folder, None), n_classes=2, readout="mean").eval()

    return build


def six_texts():
    """As many examples as tokens, which must not be mixed up."""
    mask = (torch.arange(6) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    tokens = torch.randint(5, 60, (6, 6), generator=torch.Generator().manual_seed(0)) * mask
    return {"input_ids": tokens, "attention_mask": mask, "numbers": tokens.float(), "ids": [*"abcdef"]}


def answers_of_needed(model, batch, leaves):
    """The answer of each example at each layer while it is needed, by (example, layer)."""
    found: dict[tuple[str, int], torch.Tensor] = {}
    layer = 0

    def visit(state, kept):
        nonlocal layer
        layer += 1
        for example, answer in zip(kept["ids"], model.readout(state, kept), strict=True):
            found[example, layer] = answer
        rows = [batch["ids"].index(example) for example in kept["ids"]]
        return leaves[rows] > layer

    model.visit_needed(model.signal(batch)[0], batch, visit)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_needed_rows_have_the_states_of_the_full_model(models, family):
    model, batch = models(family), six_texts()
    full = [model.readout(state, batch) for state in model.layer_states(model.signal(batch)[0], batch)]
    found = answers_of_needed(model, batch, LEAVES)
    assert set(found) == {("abcdef"[row], layer) for row in range(6) for layer in range(1, int(LEAVES[row]) + 1)}
    for (example, layer), answer in found.items():
        assert torch.allclose(answer, full[layer - 1]["abcdef".index(example)], atol=1e-5), (example, layer)
    # Nothing of it is left behind.
    again = [model.readout(state, batch) for state in model.layer_states(model.signal(batch)[0], batch)]
    assert torch.equal(torch.stack(again), torch.stack(full))


@torch.no_grad()
def test_an_input_with_as_many_rows_as_the_batch_may_not_belong_to_the_batch(models):
    """DeBERTa's layers get 16 embeddings of relative positions."""
    model, six = models("deberta-v2"), six_texts()
    batch = take(six, torch.arange(16) % 6)
    batch["ids"] = [*"abcdefghijklmnop"]
    full = [model.readout(state, batch) for state in model.layer_states(model.signal(batch)[0], batch)]
    found = answers_of_needed(model, batch, LEAVES[torch.arange(16) % 6])
    for (example, layer), answer in found.items():
        assert torch.allclose(answer, full[layer - 1][batch["ids"].index(example)], atol=1e-5)


@pytest.mark.parametrize("family", [*CONFIGS, "llama"])
@torch.no_grad()
def test_layers_compute_only_the_needed_rows_and_no_layer_that_none_needs(models, family):
    model, batch = models(family), six_texts()
    rows: list[int] = []

    def count(module, args, kwargs, output):
        rows.append(len(output[0] if isinstance(output, tuple) else output))

    for layer in dict.fromkeys(model._layers[0]):
        # Before the model's own hook, which puts the rows back.
        layer.register_forward_hook(count, with_kwargs=True, prepend=True)
    # The first pass finds out which inputs have rows.
    answers_of_needed(model, batch, LEAVES)
    rows.clear()
    answers_of_needed(model, batch, LEAVES)
    assert rows == [6, 4, 2]
    rows.clear()
    answers_of_needed(model, batch, LEAVES.clamp(max=2))
    assert rows == [6, 4]


@torch.no_grad()
def test_unrolled_layers_compute_only_the_needed_rows(models, monkeypatch):
    rows = []

    def counted(x, *others):
        rows.append(len(x))
        return attend(x, *others)

    monkeypatch.setattr("cudt.models.unrolled_steps.attend", counted)
    answers_of_needed(models("unrolled"), six_texts(), LEAVES)
    assert rows == [6, 4, 2]


@torch.no_grad()
def test_a_model_that_goes_on_with_all_rows_gives_the_same_and_is_stopped_too():
    torch.manual_seed(0)
    model, batch = Residual(3, 6), six_texts()
    calls: Counter[int] = Counter()
    for index, layer in enumerate(model.layers):
        layer.register_forward_hook(lambda *call, index=index: calls.update([index]))
    full = [model.readout(state, batch) for state in model.layer_states(model.signal(batch)[0], batch)]
    calls.clear()
    found = answers_of_needed(model, batch, LEAVES.clamp(max=2))
    assert calls == {0: 1, 1: 1}
    assert len(found) == int(LEAVES.clamp(max=2).sum())
    for (example, layer), answer in found.items():
        assert torch.allclose(answer, full[layer - 1]["abcdef".index(example)])


def test_rows_of_a_batch_keep_their_order():
    taken = take(six_texts(), torch.tensor([4, 1]))
    assert taken["ids"] == ["e", "b"]
    assert taken["attention_mask"].sum(1).tolist() == [5, 4]
