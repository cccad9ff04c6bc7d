"""constraints.csv and descent.csv against the losses they are made of."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

from cudt.data.loading import batches
from cudt.data.splits import Split
from cudt.evaluation import carry_over
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import Grid
from cudt.method.measurement import Measurement
from cudt.models.layer_losses import measure
from cudt.noise import NoiseSource
from cudt.runs.run import Run
from cudt.runs.tables import TABLES
from cudt.training import train as training
from tests.conftest import tiny_recipe, train_quietly
from tests.evaluation.conftest import untracked
from tests.runs import plant_info, raw_info

SEEN: dict[Split, list[float]] = {"train": [0.47, 0.51, 0.5], "validation": [0.5, 0.5, 0.5]}


def evaluated(run: Run, grid: Grid | None = None) -> None:
    evaluate_ood(run, grid or Grid(), "cpu", None, untracked)


def numbers(run: Run, kind: str = "gaussian") -> pd.DataFrame:
    """The rows of descent.csv about the whole model: a column for each name."""
    table = run.read_table("descent")
    mine = table[(table["layer"] == 0) & (table["perturbation"] == kind)]
    return mine.pivot(index="gamma", columns="name", values="value")


def measured(
    run: Run, split: Split, seed: int | str, gamma: float, sigma: float, kind: str = "gaussian"
) -> Measurement:
    layerwise = training.load(run, "cpu", None)
    examples = layerwise.task.examples(split)
    source = NoiseSource(kind, sigma, seed)
    return measure(
        layerwise, batches(layerwise.task, examples, 16, torch.device("cpu")), source, [gamma]
    )[0]


# ---------------------------------------------------------------- constraints.csv


def test_each_constraint_is_judged_by_the_paired_differences_of_the_test_examples(run):
    evaluated(run)
    info, table = run.finished_info(), run.read_table("constraints").set_index(["gamma", "layer"])
    assert sorted({gamma for gamma, _ in table.index}) == [0, 0.4, 0.5, 1]
    level = measured(run, "test", 0, 1.0, info.sigma_x.evaluation)
    losses = [[info.reference] * 40, *level.losses.tolist()]
    for layer, rate in enumerate(info.rates, 1):
        row, differences = table.loc[(1.0, layer)], []
        for now, before in zip(losses[layer], losses[layer - 1], strict=True):
            differences.append(now - (1 - rate) * before)
        mean = sum(differences) / 40
        spread = math.sqrt(sum((one - mean) ** 2 for one in differences) / 39 / 40)
        assert row["violation"] == pytest.approx(mean, abs=1e-6)
        assert row["standard_error"] == pytest.approx(spread, rel=1e-4)
        assert row["loss"] - row["allowed"] == pytest.approx(row["violation"])
        wanted = "met" if mean <= 0 else "borderline" if mean <= 2 * spread else "violated"
        assert row["verdict"] == wanted


@pytest.mark.parametrize("form", ["linear", "log"])
def test_a_constraint_within_the_slack_of_the_run_is_relaxed(form, tmp_path):
    recipe = tiny_recipe(f"descent.form={form}", "descent.resilience=decay", "descent.beta=1")
    run = train_quietly(recipe, tmp_path)
    evaluated(run, Grid([1.0]))
    rows = run.read_table("constraints")
    row = rows[rows["violation"] > 3 * rows["standard_error"]].iloc[-1]
    assert row["verdict"] in ("violated", "relaxed")
    verdicts = raw_info(run)["verdicts"]
    allowed = row["allowed"] / verdicts[int(row["layer"]) - 1]["allowed"] if form == "log" else 1
    just_enough = (row["violation"] - 2 * row["standard_error"]) / allowed
    for factor, wanted in ((1.01, "relaxed"), (0.99, "violated")):
        plant_info(run, verdicts=[{**one, "slack": factor * just_enough} for one in verdicts])
        evaluated(run, Grid([1.0]))
        again = run.read_table("constraints").set_index(["gamma", "layer"])["verdict"]
        assert again[row["gamma"], row["layer"]] == wanted


def test_weights_that_are_not_the_runs_own_have_tables_of_their_own_and_no_slack(tmp_path):
    run = train_quietly(tiny_recipe("descent.resilience=decay", "descent.beta=1"), tmp_path)
    plant_info(run, verdicts=[{**one, "slack": 1e6} for one in raw_info(run)["verdicts"]])
    last = run.with_weights("last")
    for weights in (run, last):
        evaluated(weights, Grid([1.0]))
    own, other = (one.read_table("constraints") for one in (run, last))
    assert "violated" not in set(own["verdict"])
    assert "relaxed" in set(own["verdict"])
    assert "relaxed" not in set(other["verdict"])
    assert (run.path / "last" / "descent.csv").is_file()


# ---------------------------------------------------------------- descent.csv


def test_the_summary_of_constraints_made_by_hand(run):
    plant_info(run, reference=1.0, rates=[0.2, 0.1, 0.1])
    curves = {0.4: [0.8, 0.4, 0.2], 2.0: [0.9, 0.3, 0.6]}
    verdicts = {0.4: ["met", "borderline", "met"], 2.0: ["violated", "met", "relaxed"]}
    rows = [
        ("gaussian", gamma, layer, loss, 0.0, loss - 0.5, 0.0, verdicts[gamma][layer - 1])
        for gamma, losses in curves.items()
        for layer, loss in enumerate(losses, 1)
    ]
    run.write_table("constraints", pd.DataFrame(rows, columns=TABLES["constraints"]))
    run.write_table("descent", carry_over.summary_rows(run, SEEN))
    trained_at, far = (numbers(run).loc[gamma].to_dict() for gamma in (0.4, 2.0))
    assert trained_at == pytest.approx(
        {
            **{
                "kept": 3,
                "kept_share": 1,
                "largest_violation": 0.3,
                "best_layer": 3,
                "best_loss": 0.2,
                "gap": 0,
            },
            **{"rate": 1 - 0.2 ** (1 / 3), "zeta": 0.04, "shift": 0, "bound": 0.4},
            "bound_at_depth": ((0.8 + 0.04) * 0.9 + 0.04) * 0.9 + 0.04,
        }
    )
    # Two losses rise, by at most 0.4; one falls, by 0.1.
    assert far == pytest.approx(
        {
            **{
                "kept": 1,
                "kept_share": 1 / 3,
                "largest_violation": 0.4,
                "best_layer": 2,
                "best_loss": 0.3,
                "gap": 0.3,
            },
            **{"rate": 1 - 0.6 ** (1 / 3), "zeta": 0.04, "shift": 0.5, "bound": 5.4},
            "bound_at_depth": ((0.8 + 0.54) * 0.9 + 0.54) * 0.9 + 0.54,
        }
    )
    table = run.read_table("descent").set_index(["gamma", "layer", "name"])["value"]
    assert [table[2.0, layer, "rate"] for layer in (1, 2, 3)] == pytest.approx([0.1, 2 / 3, -1])
    assert carry_over.seen_losses(run) == SEEN
