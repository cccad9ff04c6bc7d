from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cudt.config import recipe
from cudt.models.causal_network import Causal
from cudt.models.encoder_network import Encoder
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.run import Run
from cudt.tasks.text_classification import TextClassification
from cudt.training import train as training
from cudt.training.checkpoint import load_weights
from cudt.training.train import assemble
from cudt.utils.errors import DataWarning
from tests import instructions, texts
from tests.cards import read_cards
from tests.conftest import quiet
from tests.pretrained import tiny_llama, tiny_pretrained
from tests.runs import raw_info, without_checksums

#: Encoders: two readouts of BERT, and a family with a final norm.
ENCODERS = ("first", "mean", "modernbert")
NAMES = ("lora", "full", *ENCODERS)
TEXTS = ("a text", "the film was good and the plot was dull.", "awful")
TOKENS = [0, 35, 60, 70, 75, 80]

CODE = """
folders, texts, tokens = given
for name, folder in folders.items():
    os.chdir(folder)
    if name not in ("lora", "full"):
        found[name] = []
        for text in texts:
            read = {}
            exec(lines_of().replace('"a text"', json.dumps(text)), read)
            found[name].append(read["logits"][0].tolist())
        found[name + " labels"] = read["encoder"].config.id2label
    else:
        read = {}
        exec(lines_of(), read)
        with torch.no_grad():
            found[name] = read["model"](input_ids=torch.tensor([tokens])).logits[0].tolist()
        found[name + " text"] = read["text"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def trained(folder) -> dict[str, Run]:
    """A run with adapters, one of a whole causal model, and encoders."""
    instructions.write_instructions(folder)
    instructions.write_recipe(folder, tiny_llama(folder / "llama", tie_word_embeddings=True))
    texts.write_reviews(folder)
    short, out = ("training.epochs=1",), folder / "outputs"
    found = {
        # So fast that the last epoch is not the best.
        "lora": instructions.train(folder, out, "training.epochs=2", "training.learning_rate=0.3"),
        "full": instructions.train(folder, out, *short, "model.lora=null", objective="erm"),
    }
    for name in ENCODERS:
        family, readout = ("bert", name) if name in ("first", "mean") else (name, "mean")
        path = texts.write_recipe(folder, tiny_pretrained(folder / family, family), readout=readout)
        found[name] = training.train(recipe.load(str(path), short), out, "cpu", folder, quiet())
    return found


@pytest.fixture(scope="module")
def read(trained) -> dict[str, Any]:
    """What the cards' lines compute in a Python that never heard of cudt."""
    return read_cards(CODE, {name: str(run.path) for name, run in trained.items()}, TEXTS, TOKENS)


def logits(model: Causal) -> torch.Tensor:
    batch = {
        "input_ids": torch.tensor([TOKENS]),
        "attention_mask": torch.ones(1, len(TOKENS), dtype=torch.long),
    }
    batch["labels"] = batch["input_ids"]
    answer = model.readout(model.layer_states(model.signal(batch)[0], batch)[-1], batch)
    return answer.head(answer.states)


def best(run: Run, folder: Path) -> LayerwiseLosses:
    layerwise = assemble(run.recipe, folder, torch.device("cpu")).layerwise.eval()
    layerwise.load_learned_weights(load_weights(run))
    return layerwise


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def card(run: Run) -> str:
    return (run.path / "model" / "README.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------- the same numbers without cudt


@pytest.mark.parametrize("name", ["lora", "full"])
@torch.no_grad()
def test_the_lines_of_the_card_load_a_causal_model_with_the_same_logits(
    name, trained, read, folder
):
    model = best(trained[name], folder).model
    assert isinstance(model, Causal)
    assert torch.allclose(torch.tensor(read[name]), logits(model), atol=1e-4)


@torch.no_grad()
def test_it_is_the_best_model_that_is_exported_and_not_the_first_nor_the_last(
    trained, read, folder
):
    layerwise = assemble(trained["lora"].recipe, folder, torch.device("cpu")).layerwise.eval()
    assert isinstance(layerwise.model, Causal)
    first = logits(layerwise.model)
    layerwise.load_learned_weights(load_weights(trained["lora"].with_weights("last")))
    assert trained["lora"].finished_info().best.epoch == 1
    for other in (first, logits(layerwise.model)):
        assert not torch.allclose(torch.tensor(read["lora"]), other, atol=1e-2)


def test_the_lines_of_the_cards_load_every_weight_and_say_nothing_about_missing_ones(read):
    said = re.findall("missing|unexpected|newly|not initialized|warning", read["log"].lower())
    assert not said, read["log"]


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_the_lines_of_the_card_load_an_encoder_with_the_same_answers(name, trained, read, folder):
    layerwise = best(trained[name], folder)
    model, task = layerwise.model, layerwise.task
    assert isinstance(model, Encoder)
    assert isinstance(task, TextClassification)
    for text, logits in zip(TEXTS, read[name], strict=True):
        batch = dict(task.tokenizer(text, return_tensors="pt"))
        answer = model.readout(model.layer_states(model.signal(batch)[0], batch)[-1], batch)
        assert logits == pytest.approx(answer[0].tolist(), abs=1e-5)
    assert read["first"] != read["mean"]


# ---------------------------------------------------------------- the folder


def test_an_adapter_is_saved_without_the_model_it_adapts(trained, folder):
    files = {path.name for path in (trained["lora"].path / "model").iterdir()}
    assert {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "README.md",
    } <= files
    assert "model.safetensors" not in files
    adapter = json.loads((trained["lora"].path / "model" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], adapter["base_model_name_or_path"]) == (
        2,
        4,
        str(folder / "llama"),
    )


def test_what_could_not_be_saved_is_saved_by_the_same_command(
    trained, folder, tmp_path, monkeypatch
):
    run = Run(tmp_path / "tiny-alpaca" / trained["lora"].path.name, trained["lora"].recipe)
    shutil.copytree(trained["lora"].path, run.path)
    before = contents(run.path / "model")
    shutil.rmtree(run.path / "model")
    info = {key: value for key, value in raw_info(run).items() if key != "saved_model"}
    without_checksums(run)
    (run.path / "run.json").write_text(json.dumps(info))

    def again() -> None:
        instructions.train(folder, tmp_path, "training.epochs=2", "training.learning_rate=0.3")

    with monkeypatch.context() as patch:
        patch.setattr(Causal, "save_pretrained", lambda self, folder: 1 / 0)
        with pytest.warns(
            DataWarning, match="finished, but model/ could not be saved: division by zero"
        ):
            again()
    assert not (run.path / "model").exists()
    again()
    assert contents(run.path / "model") == before
    assert not list(run.path.glob(".model.*"))


# ---------------------------------------------------------------- the card


@pytest.mark.parametrize("name", NAMES)
def test_the_card_says_how_the_model_was_trained_and_what_each_layer_does(name, trained):
    run, text = trained[name], card(trained[name])
    objective = "erm" if name == "full" else "constrained"
    assert f"objective `{objective}`, seed 0" in text
    assert ("Trained on the loss of its last layer alone" in text) == (objective == "erm")
    rows = re.findall(r"^\| (\d+) \| (\S+) \| (\S+) \| (\S+) \| (\w+) \|$", text, re.M)
    table = run.read_table("layers")
    validation = table[table["split"] == "validation"]
    assert [int(row[0]) for row in rows] == validation["layer"].tolist() == [1, 2, 3]
    assert [float(row[1]) for row in rows] == pytest.approx(validation["loss"].tolist(), rel=1e-3)
    assert [float(row[2]) for row in rows] == pytest.approx(validation["metric"].tolist(), rel=1e-3)
    verdicts = run.finished_info().verdicts
    assert [float(row[3]) for row in rows] == pytest.approx(
        [one.allowed for one in verdicts], rel=1e-3
    )
    assert [row[4] for row in rows] == [one.verdict for one in verdicts]
    assert f"| {run.finished_info().metric.name} |" in text
    kept = "are\nkept" if run.finished_info().feasible else "are\nnot all kept"
    assert (kept in text) == (objective == "constrained")
    assert "FOLDER" not in text
