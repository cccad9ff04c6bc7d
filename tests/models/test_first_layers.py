"""`model.layers` of an encoder: a pretrained model that is cut to its first layers."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModel

from cudt.data import hub
from cudt.models import encoder as encoders
from cudt.models.encoder import Config
from cudt.models.encoder_network import Encoder
from cudt.models.first_layers import keep_first_layers
from cudt.models.lora import Lora
from cudt.tasks.text_classification import Text, TextClassification
from cudt.utils.errors import UserError
from tests.pretrained import CONFIGS, VOCABULARY, tiny_llama, tiny_pretrained, tiny_tokenizer

#: All have three layers. Those of ALBERT are one, which cannot be cut.
FAMILIES = [*(family for family in CONFIGS if family != "albert"), "llama"]
#: Of one length: some families count positions from the tokens.
TOKENS = torch.tensor([[2, 30, 40, 38, 3], [2, 46, 34, 50, 3]])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pretrained")
    found = {family: tiny_pretrained(root / family, family) for family in CONFIGS}
    found["llama"] = tiny_llama(root / "llama", vocab_size=len(VOCABULARY))
    tiny_tokenizer(pairs_have_types=False).save_pretrained(root / "llama")
    return found


def build(folder: str, layers: int | None, lora: Lora | None = None) -> Encoder:
    texts = [Text(str(number), ("good film",), number % 2) for number in range(4)]
    tokenizer = hub.load_tokenizer(folder, None)
    task = TextClassification({"train": texts, "validation": texts, "test": texts}, [0, 1], tokenizer, 16)
    torch.manual_seed(0)
    config = Config(name="encoder", pretrained=folder, readout="mean", layers=layers, lora=lora)
    return encoders.build(config, task, None).eval()


def answers(model: Encoder) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The state of every layer, and what the readout makes of it."""
    batch = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    states = model.layer_states(model.signal(batch)[0], batch)
    return states, [model.readout(state, batch) for state in states]


def size(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_cut_model_computes_what_the_first_layers_of_the_whole_one_compute(folders, family, n):
    whole, cut = build(folders[family], None), build(folders[family], n)
    assert (whole.n_layers, cut.n_layers) == (3, n)
    for found, expected in zip(answers(cut), answers(whole), strict=True):
        assert len(found) == n
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=False))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_later_layers_are_gone_and_nothing_else(folders, family):
    whole, cut = build(folders[family], None), build(folders[family], 1)
    later = sum(size(layer) for layer in whole.layer_modules()[1:])
    assert later > 0
    assert size(whole) - size(cut) == later
    assert cut.state_dict().keys() <= whole.state_dict().keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_of_a_cut_model_gets_a_gradient(folders, family):
    model = build(folders[family], 2)
    batch = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    if family in ("bert", "electra"):
        batch["token_type_ids"] = torch.zeros_like(TOKENS)
    model.readout(model.layer_states(model.signal(batch)[0], batch)[-1], batch).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_saved_model_is_the_cut_one(folders, family, tmp_path):
    model = build(folders[family], 2)
    model.save_pretrained(tmp_path)
    again, loading = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["unexpected_keys"]
    assert all("pooler" in name for name in loading["missing_keys"])
    assert again.config.num_hidden_layers == 2
    state = again.eval()(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)).last_hidden_state
    assert torch.allclose(model.head(state.mean(1)), answers(model)[1][-1], atol=1e-6)
    # A recipe can name it in its turn.
    hub.load_tokenizer(folders[family], None).save_pretrained(tmp_path)
    assert build(str(tmp_path), None).n_layers == 2


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "llama"])
@torch.no_grad()
def test_the_lines_of_the_card_load_the_cut_model(folders, family, lora, tmp_path):
    model = build(folders[family], 2, lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    lines = model.save_pretrained(tmp_path)
    tokenizer = hub.load_tokenizer(folders[family], None)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["n_layers" if family == "distilbert" else "num_hidden_layers"] == 2
    read: dict[str, torch.Tensor] = {}
    exec(lines.replace("FOLDER", str(tmp_path)), read)
    batch = dict(tokenizer("a text", return_tensors="pt"))
    expected = model.readout(model.layer_states(model.signal(batch)[0], batch)[-1], batch)
    assert torch.allclose(read["logits"], expected, atol=1e-5)


def test_more_layers_than_the_model_has_are_refused(folders):
    with pytest.raises(UserError, match=r"^model\.layers = 4: '\S+' has 3 layers; set model\.layers to at most 3, or"):
        build(folders["bert"], 4)


def test_layers_that_share_their_weights_are_refused(folders):
    reason = r"^model\.layers = 2: the layers of '\S+' \(AlbertModel\) share their weights, .*; set model\.layers"
    with pytest.raises(UserError, match=reason):
        build(folders["albert"], 2)


def test_a_model_whose_configuration_does_not_count_its_layers_is_refused(folders):
    encoder = hub.load_encoder(folders["bert"], None)
    encoder.config.num_hidden_layers = 5
    with pytest.raises(UserError, match=r"^model\.layers = 2: 'mine' \(BertModel\) cannot be cut: .*; set model"):
        keep_first_layers(encoder, 2, "mine")
    assert len(encoder.encoder.layer) == 3
