"""constraints.csv and descent.csv against the losses they are made of."""

from __future__ import annotations

import math
from itertools import pairwise

import pandas as pd
import pytest
import torch

from cudt.data.loading import batches
from cudt.data.splits import Split
from cudt.evaluation import carry_over, evaluate
from cudt.evaluation.display import descent_table
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import Grid
from cudt.method.measurement import Measurement
from cudt.models.layer_losses import measure
from cudt.noise.source import NoiseSource
from cudt.runs.info import RunInfo
from cudt.runs.run import Run
from cudt.runs.tables import TABLES
from cudt.training import trained
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
    layerwise = trained.load(run, "cpu", None)
    examples = layerwise.task.examples(split)
    source = NoiseSource(kind, sigma, seed)
    return measure(layerwise, batches(layerwise.task, examples, 16, torch.device("cpu")), source, [gamma])[0]


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


def test_losses_are_those_of_layers_csv(run):
    evaluated(run)
    layers = run.read_table("layers")
    test = layers[layers["split"] == "test"].set_index(["perturbation", "gamma", "layer"])["loss"]
    mine = run.read_table("constraints").set_index(["perturbation", "gamma", "layer"])["loss"]
    assert mine.to_dict() == pytest.approx(test.to_dict())


def test_several_noise_seeds_do_not_make_the_standard_error_smaller_than_their_examples_allow(run):
    evaluated(run, Grid([0.0], noise_seeds=[0]))
    once = run.read_table("constraints").set_index(["gamma", "layer"])["standard_error"]
    evaluated(run, Grid([0.0], noise_seeds=[0, 1, 2]))
    thrice = run.read_table("constraints").set_index(["gamma", "layer"])["standard_error"]
    # At γ = 0 all seeds measure the same.
    assert thrice[0.0].tolist() == pytest.approx(once[0.0].tolist())


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


def test_on_the_ladder_every_loss_is_compared_with_a_number(tmp_path):
    run = train_quietly(tiny_recipe("descent.form=ladder"), tmp_path)
    evaluated(run, Grid([1.0]))
    info, table = run.finished_info(), run.read_table("constraints").set_index(["gamma", "layer"])
    for layer in (1, 2, 3):
        assert table.loc[(1.0, layer)]["allowed"] == pytest.approx(0.9**layer * info.reference)
    far = numbers(run).loc[1.0]
    assert far["bound"] == pytest.approx(far["zeta"] + far["shift"])
    assert far["bound_at_depth"] == pytest.approx(far["bound"] + 0.9**3 * info.reference)


def test_other_noise_seeds_replace_the_constraints_of_their_kind(run):
    evaluated(run, Grid([0.0, 1.0]))
    evaluated(run, Grid([0.5], noise_seeds=[1]))
    assert sorted(run.read_table("constraints")["gamma"].unique()) == [0.4, 0.5]
    assert sorted(numbers(run).index) == [0.4, 0.5]


def test_a_run_that_does_not_say_its_rates_has_neither_table(run):
    plant_info(run, rates=None)
    evaluated(run)
    assert not run.read_table("ood").empty
    assert run.read_table("constraints").empty
    assert not (run.path / "descent.csv").exists()


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
            **{"kept": 3, "kept_share": 1, "largest_violation": 0.3, "best_layer": 3, "best_loss": 0.2, "gap": 0},
            **{"rate": 1 - 0.2 ** (1 / 3), "zeta": 0.04, "shift": 0, "bound": 0.4},
            "bound_at_depth": ((0.8 + 0.04) * 0.9 + 0.04) * 0.9 + 0.04,
        }
    )
    # Two losses rise, by at most 0.4; one falls, by 0.1.
    assert far == pytest.approx(
        {
            **{"kept": 1, "kept_share": 1 / 3, "largest_violation": 0.4, "best_layer": 2, "best_loss": 0.3, "gap": 0.3},
            **{"rate": 1 - 0.6 ** (1 / 3), "zeta": 0.04, "shift": 0.5, "bound": 5.4},
            "bound_at_depth": ((0.8 + 0.54) * 0.9 + 0.54) * 0.9 + 0.54,
        }
    )
    table = run.read_table("descent").set_index(["gamma", "layer", "name"])["value"]
    assert [table[2.0, layer, "rate"] for layer in (1, 2, 3)] == pytest.approx([0.1, 2 / 3, -1])
    assert carry_over.seen_losses(run) == SEEN


def test_training_data_are_measured_as_validation_data_are(run, monkeypatch):
    """With all training examples (96, of which 40 are used): the mean loss at γ_train under the noise of validation."""
    monkeypatch.setattr(carry_over, "spaced", lambda n, count: list(range(n)))
    evaluated(run)
    info, seen = run.finished_info(), carry_over.seen_losses(run)
    level = measured(run, "train", "validation", 0.4, info.sigma_x.training)
    assert seen["train"] == pytest.approx(level.layer_losses.tolist(), abs=1e-6)
    assert seen["validation"] == pytest.approx([one.loss for one in info.verdicts], abs=1e-6)


@pytest.mark.parametrize(("n_train", "n_validation"), [(96, 40), (40, 96), (7, 7), (10, 1)])
def test_as_many_training_examples_as_validation_has_evenly_spaced(n_train, n_validation):
    chosen = carry_over.spaced(n_train, n_validation)
    assert len(set(chosen)) == len(chosen) == min(n_train, n_validation)
    assert set(chosen) <= set(range(n_train))
    steps = [after - before for before, after in pairwise(chosen)]
    assert max(steps, default=0) - min(steps, default=0) <= 1


def test_data_that_training_used_are_measured_once(run, monkeypatch):
    evaluated(run, Grid([0.0]))
    before = carry_over.seen_losses(run)
    monkeypatch.setattr(evaluate, "_measure_seen", None)
    evaluated(run, Grid([1.0]))
    assert carry_over.seen_losses(run) == before
    assert sorted(numbers(run).index) == [0, 0.4, 1]


def test_the_shift_is_measured_from_the_noise_of_training(run):
    """Another noise alone: the losses under the noise of training are measured for it, and kept."""
    evaluated(run, Grid([1.0], perturbations=["uniform"]))
    table = run.read_table("constraints")
    assert sorted(table[table["perturbation"] == "gaussian"]["gamma"].unique()) == [0.4]
    losses = {key: rows["loss"].tolist() for key, rows in table.groupby(["perturbation", "gamma"])}
    changes = [now - before for now, before in zip(losses["uniform", 1.0], losses["gaussian", 0.4], strict=True)]
    wanted = max(0, *changes) + max(0, *(-one for one in changes))
    assert numbers(run, "uniform")["shift"][1.0] == pytest.approx(wanted)
    assert numbers(run)["shift"][0.4] == 0


@pytest.mark.parametrize("feasible", [True, False])
def test_the_table_has_a_bound_only_where_the_theory_promises_one(feasible, run):
    run.update_info(RunInfo(feasible=feasible))
    rows = [("gaussian", 1.0, 0, name, 0.25) for name in ("kept", "best_layer", "best_loss", "gap")]
    rows.append(("gaussian", 1.0, 0, "bound_at_depth", 0.75))
    run.write_table("descent", pd.DataFrame(rows, columns=TABLES["descent"]))
    table = descent_table(run)
    (bound,) = next(column for column in table.columns if column.header == "bound").cells
    assert bound == ("0.7500" if feasible else "–")
    assert ("no promise" in str(table.caption)) is not feasible
    # run.json does not judge other weights; their test data do.
    last = run.with_weights("last")
    verdicts = [("gaussian", 0.4, 1, 0.5, 0, 0, 0, "violated" if feasible else "met")]
    last.write_table("constraints", pd.DataFrame(verdicts, columns=TABLES["constraints"]))
    assert carry_over.has_promise(last) is not feasible
