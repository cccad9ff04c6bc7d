from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import cudt
from cudt.config import recipe
from cudt.data.loading import batches
from cudt.evaluation import predict as prediction
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.exit_rules import ExitRule
from cudt.evaluation.grid import Grid
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.training import train as training
from tests.conftest import quiet
from tests.evaluation.conftest import untracked
from tests.evaluation.test_exit_rules import literal_exit
from tests.pretrained import tiny_pretrained
from tests.texts import write_recipe, write_reviews

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def reviews(trained_run, tmp_path_factory) -> Run:
    """A run of reviews-ut with early exits evaluated on clean test data."""
    path = tmp_path_factory.mktemp("reviews") / "run"
    shutil.copytree(trained_run.path, path)
    evaluate_ood(open_run(path), Grid([0.0]), "cpu", None, untracked, with_exits=True)
    return open_run(path)


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> tuple[Run, Path]:
    """A run of a tiny BERT on a user's own texts, and the folder of its data."""
    folder = tmp_path_factory.mktemp("texts")
    write_reviews(folder)
    loaded = recipe.load(
        str(write_recipe(folder, tiny_pretrained(folder / "bert"), readout="mean")), ()
    )
    run = training.train(loaded, folder / "outputs", "cpu", folder, quiet())
    evaluate_ood(
        run, Grid([0.0], perturbations=["gaussian"]), "cpu", folder, untracked, with_exits=True
    )
    return run, folder


def loaded(run: Run, folder: Path | None) -> LayerwiseLosses:
    """The model that predictions use."""
    return prediction._load(run.path, run.weights, prediction._stamp(run), "cpu", folder)


def texts_of(run: Run, folder: Path | None) -> tuple[list[str], list[int | str]]:
    """The test texts of a run, and their classes."""
    if folder is None:
        layerwise = loaded(run, None)
        tests = layerwise.task.examples("test")
        return [" ".join(review.words) for review in tests], [
            ("negative", "positive")[review.label] for review in tests
        ]
    with (folder / "test.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row["review"] for row in rows], [row["opinion"] for row in rows]


@torch.no_grad()
def all_layers(run: Run, folder: Path | None, texts: list[str]) -> np.ndarray:
    """Class probabilities at all layers of each text by itself, (texts, layers, classes)."""
    layerwise = loaded(run, folder)
    rows = []
    for text in texts:
        (batch,) = batches(layerwise.task, layerwise.task.from_texts([(text,)]), 1, CPU)
        states = layerwise.model.layer_states(layerwise.model.signal(batch)[0], batch)
        rows.append(
            torch.cat(
                [layerwise.model.readout(state, batch).double().softmax(-1) for state in states]
            )
        )
    return torch.stack(rows).numpy()


@pytest.fixture(params=["reviews", "own"])
def case(request, reviews, own) -> tuple[Run, Path | None]:
    return (reviews, None) if request.param == "reviews" else own


def middle(probabilities: np.ndarray, name: str) -> float:
    """A threshold in the widest gap near the middle, so that rounding of floats decides nothing."""
    if name == "patience":
        return 2.0
    largest = probabilities[:, :-1].max(-1)
    entropy = -(probabilities[:, :-1] * np.log(probabilities[:, :-1])).sum(-1)
    values = np.sort((largest if name == "confidence" else entropy).ravel())
    values = values[len(values) // 3 : 2 * len(values) // 3]
    widest = int(np.diff(values).argmax())
    return float(values[widest : widest + 2].mean())


def test_without_exit_predictions_are_the_last_layers(case):
    run, folder = case
    texts, _ = texts_of(run, folder)
    found = cudt.predict(run, texts, device="cpu", data_root=folder)
    full = all_layers(run, folder, texts)[:, -1]
    assert np.allclose(found.probabilities, full, atol=1e-5)
    assert found.labels == [found.classes[index] for index in full.argmax(-1)]
    assert found.layers.tolist() == [3] * len(texts)
    assert found.n_layers == 3


@pytest.mark.parametrize("name", ["confidence", "entropy", "patience"])
def test_each_text_has_the_answer_of_the_layer_it_leaves_at_and_the_full_models_at_the_last(
    case, name
):
    run, folder = case
    texts, _ = texts_of(run, folder)
    layers = all_layers(run, folder, texts)
    threshold = middle(layers, name)
    found = run.predict(texts, {name: threshold}, device="cpu", data_root=folder)
    wanted = [literal_exit(ExitRule(name, threshold), one) for one in layers.tolist()]
    assert found.layers.tolist() == wanted
    # A model of two classes seldom changes its mind after a layer.
    assert name == "patience" or len(set(wanted)) > 1
    assert np.allclose(
        found.probabilities, layers[np.arange(len(texts)), found.layers - 1], atol=1e-5
    )
    full = run.predict(texts, device="cpu", data_root=folder)
    last = found.layers == 3
    assert name == "patience" or last.any()
    assert np.allclose(found.probabilities[last], full.probabilities[last], atol=1e-6)


@pytest.mark.parametrize("name", ["confidence", "entropy", "patience"])
def test_a_chosen_rule_gives_what_eval_ood_measured_on_clean_test_data(case, name):
    run, folder = case
    texts, labels = texts_of(run, folder)
    found = run.predict(texts, exit=name, device="cpu", data_root=folder)
    table = run.read_table("exits")
    rows = table[(table["split"] == "test") & (table["gamma"] == 0) & (table["rule"] == name)]
    (row,) = rows[rows["chosen"] == 1].itertuples()
    assert found.layers.mean() == pytest.approx(row.mean_depth)
    assert np.mean(
        [one == other for one, other in zip(found.labels, labels, strict=True)]
    ) == pytest.approx(row.accuracy)


def test_a_layer_that_no_text_needs_does_not_run(own):
    run, folder = own
    texts, _ = texts_of(run, folder)
    layers = loaded(run, folder).model.layer_modules()
    ran: list[int] = []
    hooks = [
        layer.register_forward_pre_hook(lambda *_, index=index: ran.append(index))
        for index, layer in enumerate(layers)
    ]
    found = run.predict(texts[:2], {"patience": 2}, device="cpu", data_root=folder)
    for hook in hooks:
        hook.remove()
    assert (set(found.layers), ran) in [({2}, [0, 1]), ({2, 3}, [0, 1, 2]), ({3}, [0, 1, 2])]
    ran.clear()
