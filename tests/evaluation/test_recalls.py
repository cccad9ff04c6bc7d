from __future__ import annotations

from statistics import NormalDist

import pytest
import torch

from cudt import load_recipe
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import Grid
from cudt.evaluation.recalls import detection, recall_rows
from cudt.method.measurement import Measurement
from cudt.runs.run import Run
from cudt.tasks.base import build_task
from tests.evaluation.conftest import untracked


@pytest.mark.parametrize("bias", [0.0, 0.8, -1.3])
@pytest.mark.parametrize("apart", [0.0, 1.5])
def test_normal_logits_give_back_their_distance_and_threshold(apart, bias):
    """Logits N(±d′/2, 1) with the threshold at c: the shares on each side are known exactly."""
    n, zeros, ones = 10**6, NormalDist(-apart / 2, 1), NormalDist(apart / 2, 1)
    found = detection(zeros.cdf(bias), n, 1 - ones.cdf(bias), n)
    assert found.unbiased == pytest.approx(NormalDist().cdf(apart / 2), abs=1e-5)
    assert found.bias == pytest.approx(bias, abs=1e-4)


def test_answering_one_class_has_a_finite_bias_and_no_unbiased_accuracy():
    unbiased, bias = detection(1.0, 250, 0.0, 250)
    assert unbiased == pytest.approx(0.5)
    assert 2 < bias < 4


def test_an_evaluation_writes_the_recall_of_its_examples_counted_one_by_one(run: Run):
    evaluate_ood(run, Grid([0.0, 1.0], noise_seeds=[0, 1]), "cpu", None, untracked)
    found = run.read_table("recalls").set_index(["gamma", "seed", "class"])
    assert len(found) == 2 * 2 * 2
    task = build_task(run.recipe.settings.task, None, None)
    labels = {example.id: example.label for example in task.examples("test")}
    scores = run.read_examples()
    for (gamma, seed, label), row in found.iterrows():
        level = scores[(scores["gamma"] == gamma) & (scores["seed"] == seed)]
        mine = [score for one, score in zip(level["id"], level["score"], strict=True) if labels[one] == label]
        assert row["recall"] == pytest.approx(sum(mine) / len(mine))
        assert row["n"] == len(mine)


def test_levels_evaluated_again_replace_their_rows(run: Run):
    for _ in range(2):
        evaluate_ood(run, Grid([0.0, 1.0]), "cpu", None, untracked)
    assert len(run.read_table("recalls")) == 2 * 2


def test_tasks_without_classes_have_no_rows():
    video = load_recipe("smoke-video").settings
    measured = Measurement(torch.ones(2, 1), torch.ones(2, 1), torch.ones(1), ["0"])
    assert recall_rows(build_task(video.task, None, None), "gaussian", 0, [measured], [1.0]).empty
