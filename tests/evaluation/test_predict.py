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
from cudt.tasks.base import IGNORED
from cudt.training import launch
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
    loaded = recipe.load(str(write_recipe(folder, tiny_pretrained(folder / "bert"), readout="mean")), ())
    run = launch.train(loaded, folder / "outputs", "cpu", folder, quiet())
    evaluate_ood(run, Grid([0.0], perturbations=["gaussian"]), "cpu", folder, untracked, with_exits=True)
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
        rows.append(torch.cat([layerwise.model.readout(state, batch).double().softmax(-1) for state in states]))
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
def test_each_text_has_the_answer_of_the_layer_it_leaves_at_and_the_full_models_at_the_last(case, name):
    run, folder = case
    texts, _ = texts_of(run, folder)
    layers = all_layers(run, folder, texts)
    threshold = middle(layers, name)
    found = run.predict(texts, {name: threshold}, device="cpu", data_root=folder)
    wanted = [literal_exit(ExitRule(name, threshold), one) for one in layers.tolist()]
    assert found.layers.tolist() == wanted
    # A model of two classes seldom changes its mind after a layer.
    assert name == "patience" or len(set(wanted)) > 1
    assert np.allclose(found.probabilities, layers[np.arange(len(texts)), found.layers - 1], atol=1e-5)
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
    assert np.mean([one == other for one, other in zip(found.labels, labels, strict=True)]) == pytest.approx(
        row.accuracy
    )


def test_a_layer_that_no_text_needs_does_not_run(own):
    run, folder = own
    texts, _ = texts_of(run, folder)
    layers = loaded(run, folder).model.layer_modules()
    ran: list[int] = []
    hooks = [
        layer.register_forward_pre_hook(lambda *_, index=index: ran.append(index)) for index, layer in enumerate(layers)
    ]
    found = run.predict(texts[:2], {"patience": 2}, device="cpu", data_root=folder)
    for hook in hooks:
        hook.remove()
    assert (set(found.layers), ran) in [({2}, [0, 1]), ({2, 3}, [0, 1, 2]), ({3}, [0, 1, 2])]
    ran.clear()


def test_pairs_are_predicted_as_they_were_trained(tmp_path):
    rows = [("the film was good", "the cast was bad", "no"), ("the film was good", "the film was fine", "yes")]
    lines = "".join(f"{one},{other},{label}\n" for one, other, label in rows * 20)
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(f"first,second,same\n{lines}", encoding="utf-8")
    file = write_recipe(tmp_path, tiny_pretrained(tmp_path / "bert"))
    text = file.read_text(encoding="utf-8").replace("text: review", "text: [first, second]")
    file.write_text(text.replace("label: opinion", "label: same"), encoding="utf-8")
    run = launch.train(recipe.load(str(file), ()), tmp_path / "outputs", "cpu", tmp_path, quiet())
    found = run.predict([rows[0][:2], list(rows[1][:2])], {"patience": 2}, device="cpu", data_root=tmp_path)
    assert found.classes == ["no", "yes"]
    assert found.probabilities.shape == (2, 2)
    assert set(found.layers) <= {2, 3}
    layerwise = loaded(run, tmp_path)
    known, new = layerwise.task.examples("test")[:2], layerwise.task.from_texts([rows[0][:2], rows[1][:2]])
    ids = {example.inputs["input_ids"].tobytes() for example in known}
    assert {example.inputs["input_ids"].tobytes() for example in new} >= ids
    assert {example.label for example in new} == {IGNORED}
    with pytest.raises(cudt.UserError, match=r"text 1: expected 2 text\(s\), as in the training data, got 1"):
        run.predict([rows[0][:2], "one"], device="cpu", data_root=tmp_path)


def test_other_training_data_are_refused_since_they_may_number_the_classes_differently(own, tmp_path):
    run, folder = own
    shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns("outputs"))
    file = tmp_path / "data" / "train.csv"
    file.write_text(file.read_text(encoding="utf-8").replace(",bad", ",zero"), encoding="utf-8")
    with pytest.raises(cudt.UserError, match="started with other training data"):
        run.predict(["the film was good"], device="cpu", data_root=tmp_path / "data")


def test_the_last_weights_have_predictions_and_thresholds_of_their_own(reviews):
    last = reviews.with_weights("last")
    assert last.results != reviews.results
    texts = ["the plot was dull but the cast was moving"]
    with pytest.raises(cudt.UserError, match="no threshold for exit='confidence' yet"):
        last.predict(texts, "confidence", device="cpu")
    both = [run.predict(texts, device="cpu").probabilities for run in (reviews, last, reviews)]
    assert np.array_equal(both[0], both[2])
    # Prediction adds no noise: it measures nothing and writes nothing.
    assert not last.results.exists()


def test_the_model_is_loaded_once(reviews, monkeypatch):
    reviews.predict(["the plot was dull"], device="cpu")
    monkeypatch.setattr("cudt.training.trained.load", lambda *given: pytest.fail("loaded again"))
    assert reviews.predict(["the plot was dull"], device="cpu").labels[0] in ("negative", "positive")
    assert reviews.predict([], device="cpu").labels == []


@pytest.mark.parametrize(
    ("texts", "rule", "message"),
    [
        (["a plot"], None, "text 0: unknown word 'a'; reviews have the words the, was"),
        (["the", ""], None, "text 1: expected 1 to 20 words, got 0"),
        (["the"], "confidense", "exit: no rule 'confidense'; did you mean 'confidence'"),
        (["the"], {"patience": 0}, "exit: patience: expected a number of layers: 1, 2, …, got 0"),
        (["the"], {"patience": 1.5}, "exit: patience: expected a number of layers: 1, 2, …, got 1.5"),
        (["the"], {"confidence": 2}, "exit: confidence: expected a probability between 0 and 1, got 2"),
        (["the"], {"confidence": "high"}, "exit: confidence: expected a probability between 0 and 1, got 'high'"),
        (["the"], {"entropy": -1}, "exit: entropy: expected a number from 0 on, got -1"),
        (["the"], {"patience": 2, "entropy": 1}, 'exit: expected a rule, or {"confidence": 0.9} with its threshold'),
        (["the"], {3: 0.5}, "exit: no rule '3'; expected confidence, entropy, patience"),
        (["the"], 3, 'exit: expected a rule, or {"confidence": 0.9} with its threshold, got 3'),
    ],
)
def test_wrong_texts_and_rules_are_refused(reviews, texts, rule, message):
    with pytest.raises(cudt.UserError) as error:
        cudt.predict(reviews.path, texts, rule, device="cpu")
    assert message in str(error.value)


def test_one_text_is_not_a_list_of_letters(reviews):
    with pytest.raises(TypeError, match="a list of texts"):
        reviews.predict("the plot was dull", device="cpu")
