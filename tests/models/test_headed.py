from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from cudt.config.recipe import NamedRecipe, validate
from cudt.data.batching import Batch, take
from cudt.data.stored_examples import Kind, StoredExample, write_examples
from cudt.models.assemble import assemble_model
from cudt.models.base import LayeredModel
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.own_head import layer_losses
from cudt.utils.errors import UserError
from tests.models.test_own_head import HEADS, config_of
from tests.pretrained import tiny_pretrained
from tests.texts import write_reviews

KINDS: dict[str, Kind] = {"sequence": "sequence", "token": "tokens", "causal": "causal", "image": "image"}
CASES = [
    *(("sequence", family) for family in ("bert", "roberta", "distilbert", "albert", "modernbert", "gpt2", "llama")),
    *(("token", family) for family in ("bert", "distilbert", "gpt2")),
    *(("causal", family) for family in ("gpt2", "llama", "opt", "gemma")),
    ("image", "vit"),
]


def examples_of(kind: Kind, count: int = 6, seed: int = 0) -> list[StoredExample]:
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        length = 4 + number
        tokens = generator.integers(5, 40, length)
        labels = generator.integers(0, 3, 1)
        if kind in ("tokens", "causal"):
            labels = tokens % 3 if kind == "tokens" else tokens.copy()
            labels[::4] = -100
        inputs = {"input_ids": tokens}
        if kind == "image":
            inputs = {"pixel_values": generator.normal(size=(3, 16, 16)).astype(np.float32)}
        found.append(StoredExample(str(number), inputs, labels))
    return found


def write_stored(root: Path, kind: Kind, count: int = 6) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        (root / "stored").mkdir(parents=True, exist_ok=True)
        write_examples(root / "stored" / f"{split}.parquet", examples_of(kind, count, seed=number), kind)


def recipe_of(pretrained: str, kind: Kind, **model: Any) -> NamedRecipe:
    classes = {} if kind == "causal" else {"classes": 3}
    values = {
        "task": {"name": "stored", "folder": "stored", "kind": kind, **classes},
        "model": {"name": "headed", "pretrained": pretrained, **model},
    }
    return NamedRecipe("headed", validate(values, "test"))


def saved(folder: Path, head: str, family: str, **changes: Any) -> str:
    torch.manual_seed(0)
    HEADS[head].from_config(config_of(family, **changes)).save_pretrained(folder)
    return str(folder)


def headed(layerwise: LayerwiseLosses) -> Any:
    return layerwise.model.headed


def batch_of(layerwise: LayerwiseLosses) -> Batch:
    return layerwise.task.collate(layerwise.task.examples("train"))


def own_losses(model: Any, batch: Batch, kind: Kind) -> torch.Tensor:
    """What transformers computes for the same examples; it shifts the labels of causal models itself."""
    inputs = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor) and name != "labelled"}
    if kind == "causal":
        inputs["labels"] = torch.nn.functional.pad(inputs["labels"], (1, 0), value=-100)[:, :-1]
    return layer_losses(model, inputs)


def pair_of(root: Path, head: str, family: str) -> tuple[LayerwiseLosses, Any, Batch]:
    """A model as cudt reads it, the same model of transformers, and a batch."""
    write_stored(root, KINDS[head])
    folder = saved(root / "model", head, family)
    layerwise = assemble_model(recipe_of(folder, KINDS[head]), root, torch.device("cpu")).eval()
    return layerwise, HEADS[head].from_pretrained(folder, dtype=torch.float32).eval(), batch_of(layerwise)


@pytest.mark.parametrize(("head", "family"), CASES)
def test_layer_losses_are_those_of_the_models_own_head(tmp_path, head, family):
    layerwise, plain, batch = pair_of(tmp_path, head, family)
    weights = layerwise.task.weights(batch)
    found = layerwise(batch) @ weights / weights.sum()
    expected = own_losses(plain, batch, KINDS[head])
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert len({round(loss, 4) for loss in found.tolist()}) == 3


@pytest.mark.parametrize(("head", "family"), [("sequence", "bert"), ("token", "bert"), ("causal", "llama")])
def test_gradients_are_those_of_the_models_own_head(tmp_path, head, family):
    layerwise, plain, batch = pair_of(tmp_path, head, family)
    weights = layerwise.task.weights(batch)
    (layerwise(batch) @ weights / weights.sum()).mean().backward()
    own_losses(plain, batch, KINDS[head]).mean().backward()
    ours = dict(headed(layerwise).named_parameters())
    for name, weight in plain.named_parameters():
        assert torch.allclose(ours[name].grad, weight.grad, atol=1e-6), name


def test_rows_that_are_not_needed_any_more_do_not_change_the_others(tmp_path):
    write_stored(tmp_path, "sequence")
    model = _model(tmp_path, "albert")
    batch = {**_batch(tmp_path)}
    signal, _ = model.signal(batch)
    expected = [model.readout(state, batch) for state in model.layer_states(signal, batch)]
    kept, found = torch.tensor([0, 2, 3]), []

    def visit(state: torch.Tensor, rows: Batch) -> torch.Tensor:
        found.append(model.readout(state, rows))
        return torch.isin(torch.arange(6), kept) if len(state) == 6 else torch.ones(3, dtype=torch.bool)

    with torch.no_grad():
        model.visit_needed(signal, batch, visit)
    assert torch.allclose(found[0], expected[0])
    assert torch.allclose(found[2], expected[2][kept], atol=1e-5)
    assert torch.allclose(model.readout(model.layer_states(signal, batch)[0][kept], take(batch, kept)), found[0][kept])


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_compiled_layers_are_read_as_others(tmp_path, family):
    write_stored(tmp_path, "sequence")
    model, batch = _model(tmp_path, family), _batch(tmp_path)
    signal, _ = model.signal(batch)

    def read() -> torch.Tensor:
        answers: list[torch.Tensor] = []
        model.visit_layers(signal, batch, lambda state: answers.append(model.readout(state, batch)))
        return torch.stack(answers)

    with torch.no_grad():
        plain = read()
        for layer in model.layer_modules():
            layer.compile(backend="eager")
        assert torch.allclose(read(), plain)


def _model(root: Path, family: str) -> LayeredModel:
    folder = saved(root / "model", "sequence", family)
    return assemble_model(recipe_of(folder, "sequence"), root, torch.device("cpu")).eval().model


def _batch(root: Path) -> Batch:
    recipe = recipe_of(str(root / "model"), "sequence")
    return batch_of(assemble_model(recipe, root, torch.device("cpu")))


def text_recipe(pretrained: str) -> NamedRecipe:
    values = {
        "task": {
            **{"name": "text", "train": "train.csv", "test": "test.csv", "text": "review", "label": "opinion"},
            **{"max_length": 16, "limit": {"train": 12, "validation": 4, "test": 4}},
        },
        "model": {"name": "headed", "pretrained": pretrained},
    }
    return NamedRecipe("headed", validate(values, "test"))


def test_a_model_without_a_head_gets_a_new_one_for_the_tasks_classes(tmp_path):
    write_reviews(tmp_path)
    folder = tiny_pretrained(tmp_path / "bert", "bert")
    first, second = (assemble_model(text_recipe(folder), tmp_path, torch.device("cpu")) for _ in range(2))
    assert headed(first).classifier.out_features == 2
    assert torch.equal(headed(first).classifier.weight, headed(second).classifier.weight), "drawn from the seed"
    own = set(first.model.readout_weights())
    assert {name for name, weight in headed(first).named_parameters() if weight in own} == {
        *("classifier.weight", "classifier.bias", "bert.pooler.dense.weight", "bert.pooler.dense.bias"),
    }


def test_a_head_for_other_classes_is_refused(tmp_path):
    write_reviews(tmp_path)
    folder = tiny_pretrained(tmp_path / "bert", "bert")
    AutoModelForSequenceClassification.from_pretrained(folder, num_labels=5).save_pretrained(folder)
    with pytest.raises(UserError, match=r"weight 'classifier.bias' of its head has the shape \(5,\).*2 classes"):
        assemble_model(text_recipe(folder), tmp_path, torch.device("cpu"))


def test_an_adapter_is_loaded_with_the_model_it_was_trained_on(tmp_path):
    from peft import LoraConfig, get_peft_model

    write_stored(tmp_path, "causal")
    base = saved(tmp_path / "base", "causal", "llama")
    adapted = get_peft_model(
        HEADS["causal"].from_pretrained(base, dtype=torch.float32),
        LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear", init_lora_weights=False),
    )
    adapted.save_pretrained(tmp_path / "adapter")
    layerwise = assemble_model(recipe_of(str(tmp_path / "adapter"), "causal"), tmp_path, torch.device("cpu")).eval()
    batch = batch_of(layerwise)
    weights = layerwise.task.weights(batch)
    found = layerwise(batch) @ weights / weights.sum()
    assert found.tolist() == pytest.approx(own_losses(adapted.eval(), batch, "causal").tolist(), rel=1e-5)
    assert all("lora" in name for name in layerwise.learned_weights())
    assert layerwise.frozen_digest()
    assert not layerwise.model.signal_is_learned


def test_a_folder_of_the_run_is_found_below_the_data_root(tmp_path):
    write_stored(tmp_path, "sequence")
    saved(tmp_path / "model", "sequence", "bert")
    layerwise = assemble_model(recipe_of("run:model", "sequence"), tmp_path, torch.device("cpu"))
    assert layerwise.model.n_layers == 3
    with pytest.raises(UserError, match=r"'run:model' is a folder of a run folder, and '.*' does not exist"):
        assemble_model(recipe_of("run:model", "sequence"), tmp_path / "stored", torch.device("cpu"))


def test_tokens_without_an_embedding_are_refused(tmp_path):
    write_stored(tmp_path, "sequence")
    folder = saved(tmp_path / "model", "sequence", "bert", vocab_size=30)
    with pytest.raises(UserError, match=r"train data, example .*: a token is not in the vocabulary"):
        assemble_model(recipe_of(folder, "sequence"), tmp_path, torch.device("cpu"))


def test_other_tasks_are_refused():
    values = {"task": {"name": "alpaca"}, "model": {"name": "headed", "pretrained": "any/model"}}
    with pytest.raises(UserError, match=r"task.name = 'alpaca': model headed reads texts or stored examples"):
        assemble_model(NamedRecipe("headed", validate(values, "test")), None, torch.device("cpu"))
