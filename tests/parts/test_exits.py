"""Early exit by confidence: layers, thresholds, FLOPs and predictions against literal twins."""

from __future__ import annotations

import shutil
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

import cudt
from cudt.data.loader import batches
from cudt.evaluation import exits
from cudt.evaluation.evaluate import Grid, evaluate_ood
from cudt.runs.run import Run, open_run
from cudt.training.train import load


def examples(n: int = 50) -> pd.DataFrame:
    """Random answers of three layers, of which later ones are surer and more often right."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"id": [str(number) for number in range(n)]}
    for layer in (1, 2, 3):
        columns |= {f"loss_{layer}": 0.5, f"confidence_{layer}": rng.random(n) * 0.3 + 0.2 * layer}
        columns[f"score_{layer}"] = (rng.random(n) < 0.5 + 0.1 * layer).astype(float)
    return pd.DataFrame(columns)


@pytest.mark.parametrize("threshold", [0.0, 0.6, 1.0])
def test_each_example_leaves_at_the_first_layer_that_is_sure_enough(threshold):
    table, flops = examples(), [10.0, 25.0, 45.0, 40.0]
    layers, hits, cost = [], [], []
    for _, row in table.iterrows():
        layer = next((n for n in (1, 2) if row[f"confidence_{n}"] > threshold), 3)
        layers.append(layer)
        hits.append(row[f"score_{layer}"])
        cost.append(flops[layer - 1] / 40)
    assert exits.exit_layers(table, threshold).tolist() == layers
    found = exits.evaluated(table, threshold, flops)
    assert found["mean_depth"] == pytest.approx(np.mean(layers))
    assert found["accuracy"] == pytest.approx(np.mean(hits))
    assert found["flops"] == pytest.approx(np.mean(cost))
    assert found["full_accuracy"] == pytest.approx(table["score_3"].mean())


@pytest.mark.parametrize(
    ("accuracies", "depths", "best"),
    [
        ([0.8, 0.89, 0.896, 0.9], [1, 2, 3, 4], 2),
        # Exactly half a percentage point below; of two, the more accurate.
        ([0.8, 0.895, 0.9, 0.9], [1, 2, 2, 4], 2),
        # Early layers may be better than the last.
        ([0.93, 0.92, 0.9], [1, 2, 3], 0),
    ],
)
def test_the_shallowest_accurate_threshold(accuracies, depths, best, monkeypatch, trained_run):
    points = pd.DataFrame({"accuracy": accuracies, "mean_depth": depths}).assign(
        full_accuracy=0.9, threshold=[float(number) for number in range(len(depths))]
    )
    monkeypatch.setattr(exits, "operating_points", lambda _: points)
    monkeypatch.setattr(Run, "read_examples", lambda *_, **__: examples())
    assert exits.chosen_threshold(trained_run) == best


def product(rows: int, inner: int, columns: int) -> int:
    """A multiplication and an addition for each of the inner numbers of each entry."""
    return 2 * rows * inner * columns


def test_flops_of_unrolled_layers_are_counted_as_by_hand(trained_run):
    layerwise, settings = load(trained_run, "cpu", None), trained_run.recipe.settings
    task, device = layerwise.task, torch.device("cpu")
    batch = next(iter(batches(task, task.examples("validation"), 256, device)))
    T, d, a = batch["input_ids"].shape[1], settings.model.width, settings.model.attention_width
    # Y = X W₁ᵀ, Y Yᵀ, softmax(…) X, Z (W₂ + W₂ᵀ).
    layer = product(T, d, a) + product(T, a, T) + product(T, T, d) + product(T, d, d)
    readout = product(1, d, 2)
    found = exits.count_flops(trained_run, layerwise)
    assert found == [*(n * (layer + readout) for n in (1, 2, 3)), 3 * layer + readout]


@pytest.fixture(scope="module")
def run(trained_run: Run, tmp_path_factory) -> Run:
    """A run with early exits evaluated on clean test data."""
    path = tmp_path_factory.mktemp("exits") / "run"
    shutil.copytree(trained_run.path, path)
    made = open_run(path)
    evaluate_ood(made, Grid([0.0], exits=True), "cpu", None, lambda items, *_: items)
    return made


@pytest.mark.parametrize("wanted", [None, {"confidence": 0.51}, "confidence"])
def test_a_prediction_is_the_answer_of_the_layer_that_its_text_leaves_at(run, wanted):
    layerwise = load(run, "cpu", None)
    reviews = layerwise.task.examples("test")
    texts = [" ".join(review.texts) for review in reviews]
    found = cudt.predict(run, texts, wanted, device="cpu")
    threshold = {None: 1.0, "confidence": exits.chosen_threshold(run)}
    sure = wanted["confidence"] if isinstance(wanted, dict) else threshold[wanted]
    model = layerwise.model
    for text, probabilities, layer in zip(texts, found.probabilities, found.layers, strict=True):
        (batch,) = batches(
            layerwise.task, layerwise.task.from_texts([(text,)]), 1, torch.device("cpu")
        )
        with torch.no_grad():
            states = model.layer_states(model.signal(batch)[0], batch)
            alone = torch.cat([model.readout(one, batch).double().softmax(-1) for one in states])
        confidence = alone.max(-1).values.tolist()
        assert layer == next((n for n in (1, 2) if confidence[n - 1] > sure), 3)
        assert probabilities == pytest.approx(alone[layer - 1].tolist(), abs=1e-5)
    if wanted == "confidence":
        row = exits.exit_table(run).set_index("gamma").loc[0.0]
        labels = [("negative", "positive")[review.label] for review in reviews]
        hits = [one == other for one, other in zip(found.labels, labels, strict=True)]
        assert np.mean(hits) == pytest.approx(row["accuracy"])
        assert found.layers.mean() == pytest.approx(row["mean_depth"])


def test_a_layer_that_no_text_needs_does_not_run(run, monkeypatch):
    kind = type(load(run, "cpu", None).model)
    readout = Mock(side_effect=kind.readout)
    monkeypatch.setattr(kind, "readout", lambda *given: readout(*given))
    found = cudt.predict(run, ["the plot was dull"], {"confidence": 0.0}, device="cpu")
    assert found.layers.tolist() == [1]
    assert readout.call_count == 1
