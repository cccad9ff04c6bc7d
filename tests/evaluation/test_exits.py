from __future__ import annotations

import pandas as pd
import pytest
import torch

from cudt.data.loading import batches
from cudt.evaluation import exits
from cudt.evaluation.evaluate import check, evaluate_ood
from cudt.evaluation.exit_rules import ExitRule
from cudt.evaluation.grid import Grid
from cudt.models.layer_losses import draw_noise
from cudt.noise import NoiseSource
from cudt.runs.run import Run
from cudt.training import train as training
from tests.evaluation.conftest import untracked
from tests.evaluation.test_exit_rules import literal_exit

CPU = torch.device("cpu")


def evaluate(run: Run, grid: Grid | None = None) -> pd.DataFrame:
    grid = grid or Grid()
    check(run, grid, with_exits=True)
    evaluate_ood(run, grid, "cpu", None, untracked, with_exits=True)
    return run.read_table("exits")


@torch.no_grad()
def probabilities(run: Run, split, gamma: float, seed: int) -> tuple[torch.Tensor, list[int]]:
    """Every example's class probabilities at every layer, (examples, layers, classes), and its
    class; one by one."""
    layerwise = training.load(run, "cpu", None)
    noise = NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, seed)
    rows, labels = [], []
    for batch in batches(layerwise.task, layerwise.task.examples(split), 1, CPU):
        signal = layerwise.model.signal(batch)[0] + gamma * draw_noise(
            layerwise.model, batch, noise
        )
        states = layerwise.model.layer_states(signal, batch)
        rows.append(
            torch.cat(
                [layerwise.model.readout(state, batch).double().softmax(-1) for state in states]
            )
        )
        labels += batch["labels"].tolist()
    return torch.stack(rows), labels


@pytest.mark.parametrize(
    ("split", "gamma", "seed"), [("validation", 0.4, 0), ("test", 0.4, 1), ("test", 1.0, 1)]
)
def test_rows_are_those_of_one_example_after_the_other(run, split, gamma, seed):
    table = evaluate(run, Grid([1.0], noise_seeds=[1]))
    rows = table[(table["split"] == split) & (table["gamma"] == gamma) & (table["seed"] == seed)]
    assert set(rows["rule"]) == {"confidence", "entropy", "patience"}
    found, truth = probabilities(run, split, gamma, seed)
    for row in rows.itertuples():
        rule = ExitRule(row.rule, row.threshold)
        layers = [literal_exit(rule, example) for example in found.tolist()]
        labels = [
            int(example[layer - 1].argmax()) for example, layer in zip(found, layers, strict=True)
        ]
        assert row.mean_depth == pytest.approx(sum(layers) / 40)
        assert row.accuracy == pytest.approx(
            sum(a == b for a, b in zip(labels, truth, strict=True)) / 40
        )
        assert row.full_accuracy == pytest.approx(
            (found[:, -1].argmax(-1) == torch.tensor(truth)).double().mean()
        )
        assert row.n == 40


def test_full_accuracy_is_the_metric_of_the_curve_and_the_deepest_point_equals_the_full_model(run):
    table = evaluate(run)
    ood = run.read_table("ood")
    curve = ood[ood["metric"] == "accuracy"].set_index("gamma")["value"]
    test = table[table["split"] == "test"]
    assert sorted(test["gamma"].unique()) == [0, 0.4, 0.5, 1]
    for rule in ("confidence", "entropy", "patience"):
        rows = test[test["rule"] == rule]
        deepest = rows[rows["point"] == rows["point"].max()].set_index("gamma")
        assert deepest["mean_depth"].tolist() == [3.0] * 4
        assert deepest["accuracy"].tolist() == deepest["full_accuracy"].tolist()
        for gamma in (0, 0.5, 1):
            assert deepest["full_accuracy"][gamma] == pytest.approx(curve[gamma])
        # A rule reads every layer; a model without exits only the last.
        assert (deepest["flops"] > deepest["full_flops"]).all()


def rows_at(accuracies, depths):
    columns = {"point": range(len(depths)), "accuracy": accuracies, "mean_depth": depths}
    return pd.DataFrame(columns).assign(full_accuracy=0.9)


@pytest.mark.parametrize(
    ("accuracies", "depths", "best"),
    [
        ([0.8, 0.89, 0.896, 0.9], [1, 2, 3, 4], 2),
        # Exactly half a percentage point below; of two, the more accurate.
        ([0.8, 0.895, 0.9, 0.9], [1, 2, 2, 4], 2),
        ([0.8, 0.895, 0.9], [1, 2, 4], 1),
        # Early layers may be better than the last.
        ([0.93, 0.92, 0.9], [1, 2, 3], 0),
    ],
)
def test_the_chosen_point_is_the_shallowest_within_half_a_percentage_point(
    accuracies, depths, best
):
    assert exits._best_point(rows_at(accuracies, depths)) == best
