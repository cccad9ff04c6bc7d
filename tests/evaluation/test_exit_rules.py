from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cudt.evaluation.exit_rules import ExitRule, LayerAnswers, operating_points

#: Four layers, three classes. Example 0 is sure from the second layer on, example 1 never, example
#: 2 changes its mind.
PROBABILITIES = torch.tensor(
    [
        [[0.4, 0.3, 0.3], [0.4, 0.4, 0.2], [0.8, 0.1, 0.1]],
        [[0.9, 0.05, 0.05], [0.3, 0.5, 0.2], [0.1, 0.8, 0.1]],
        [[0.95, 0.03, 0.02], [0.3, 0.4, 0.3], [0.1, 0.85, 0.05]],
        [[0.99, 0.005, 0.005], [0.2, 0.3, 0.5], [0.05, 0.9, 0.05]],
    ],
    dtype=torch.float64,
)


def answers_of(probabilities) -> LayerAnswers:
    layers: list[LayerAnswers] = []
    for layer in probabilities:
        layers.append(LayerAnswers.read(layer, layers[-1] if layers else None))
    return LayerAnswers.joined(layers, of_layers=True)


def literal_exit(rule: ExitRule, layers) -> int:
    """The layer after which one example leaves, word by word as the docstring says."""
    labels = [max(range(len(p)), key=p.__getitem__) for p in layers]
    for layer, p in enumerate(layers, 1):
        entropy = -sum(one * math.log(one) for one in p if one > 0)
        same = 0
        while same < layer and labels[layer - 1 - same] == labels[layer - 1]:
            same += 1
        satisfied = {
            "confidence": max(p) > rule.threshold,
            "entropy": entropy < rule.threshold,
            "patience": same >= rule.threshold,
        }
        if satisfied[rule.name]:
            return layer
    return len(layers)


@pytest.mark.parametrize(
    ("rule", "layers"),
    [
        (ExitRule("confidence", 0.85), [2, 4, 4]),
        (ExitRule("confidence", 0.75), [2, 4, 1]),
        (ExitRule("entropy", 0.65), [2, 4, 1]),
        (ExitRule("patience", 1), [1, 1, 1]),
        (ExitRule("patience", 2), [2, 3, 3]),
        (ExitRule("patience", 3), [3, 4, 4]),
        (ExitRule("confidence", 1.0), [4, 4, 4]),
        (ExitRule("entropy", 0.0), [4, 4, 4]),
        (ExitRule("patience", 4), [4, 4, 4]),
    ],
    ids=str,
)
def test_an_example_leaves_at_the_first_layer_that_its_rule_accepts(rule, layers):
    if rule.name == "patience":
        # Example 1 prefers classes 0 or 1, 1, 1, 2: a tie goes to the first.
        assert answers_of(PROBABILITIES).labels[:, 1].tolist() == [0, 1, 1, 2]
    assert rule.exit_layers(answers_of(PROBABILITIES)).tolist() == layers


@pytest.mark.parametrize("name", ["confidence", "entropy", "patience"])
def test_rules_agree_with_a_literal_reading_of_them(name):
    probabilities = (
        torch.randn(5, 200, 3, generator=torch.Generator().manual_seed(0))
        .double()
        .mul(2)
        .softmax(-1)
    )
    answers = answers_of(probabilities)
    for rule in operating_points(answers)[name]:
        wanted = [literal_exit(rule, layers) for layers in probabilities.transpose(0, 1).tolist()]
        assert rule.exit_layers(answers).tolist() == wanted


def test_thresholds_are_quantiles_from_almost_all_to_none():
    probabilities = (
        torch.randn(5, 400, 3, generator=torch.Generator().manual_seed(1)).double().softmax(-1)
    )
    answers = answers_of(probabilities)
    points = operating_points(answers)
    assert [len(rules) for rules in points.values()] == [21, 21, 5]
    largest = probabilities[:-1].max(-1).values.numpy()
    assert points["confidence"][5].threshold == pytest.approx(np.quantile(largest, 0.25), abs=1e-6)
    for rules in points.values():
        depths = [float(rule.exit_layers(answers).double().mean()) for rule in rules]
        assert depths == sorted(depths)
        assert depths[0] < 1.05
        assert depths[-1] == 5
