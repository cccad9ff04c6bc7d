"""scripts/class_bias.py: recall of both classes, unbiased accuracy and bias, against literal computations."""

from __future__ import annotations

import importlib
import shutil
from statistics import NormalDist
from types import ModuleType

import pandas as pd
import pytest

from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import Grid
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.tasks.base import build_task
from tests.evaluation.conftest import untracked
from tests.test_dinov2_weights import SCRIPTS


@pytest.fixture
def class_bias(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("class_bias")


@pytest.mark.parametrize("bias", [0.0, 0.8, -1.3])
@pytest.mark.parametrize("apart", [0.0, 1.5])
def test_normal_logits_give_back_their_distance_and_threshold(class_bias, apart, bias):
    """Logits N(±d′/2, 1) with the threshold at c: the shares on each side are known exactly."""
    n, zeros, ones = 10**6, NormalDist(-apart / 2, 1), NormalDist(apart / 2, 1)
    hits, rejections = (1 - ones.cdf(bias)) * n, zeros.cdf(bias) * n
    unbiased, found = class_bias.signal(hits, n, rejections, n)
    assert unbiased == pytest.approx(NormalDist().cdf(apart / 2), abs=1e-5)
    assert found == pytest.approx(bias, abs=1e-4)


def test_answering_one_class_has_a_finite_bias_and_no_unbiased_accuracy(class_bias):
    unbiased, bias = class_bias.signal(0, 250, 250, 250)
    assert unbiased == pytest.approx(0.5)
    assert 2 < bias < 4


def test_rows_of_a_run_are_those_of_its_examples_one_by_one(class_bias, trained_run: Run, tmp_path):
    shutil.copytree(trained_run.path, tmp_path / trained_run.path.parent.name / trained_run.path.name)
    run = open_run(tmp_path / trained_run.path.parent.name / trained_run.path.name)
    evaluate_ood(run, Grid([0.0, 1.0]), "cpu", None, untracked)
    table = class_bias.table(tmp_path, None).set_index("gamma")
    assert table.index.tolist() == [0.0, 1.0]
    assert table["place"].tolist() == ["ID", "OOD"]
    task = build_task(run.recipe.settings.task, None, None)
    labels = {example.id: example.label for example in task.examples("test")}
    scores = pd.read_parquet(run.results / "examples.parquet")
    for gamma in (0.0, 1.0):
        right: dict[int, list[float]] = {0: [], 1: []}
        for row in scores[scores["gamma"] == gamma].itertuples():
            right[labels[row.id]].append(row.score)
        for label, found in right.items():
            assert table.loc[gamma, f"recall_{label}"] == pytest.approx(sum(found) / len(found))
        every = right[0] + right[1]
        assert table.loc[gamma, "accuracy"] == pytest.approx(sum(every) / len(every))
