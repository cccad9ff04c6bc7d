from __future__ import annotations

import shutil

import pandas as pd
import pytest
import torch

from cudt.data.loading import batches
from cudt.evaluation import evaluate as evaluation
from cudt.evaluation.evaluate import check, evaluate_ood, measure_parts, parts_of
from cudt.evaluation.grid import Grid
from cudt.models.layer_losses import draw_noise
from cudt.noise import NoiseSource
from cudt.runs.find import find_runs
from cudt.runs.info import RunInfo, SigmaX
from cudt.runs.run import Run
from cudt.training import train as training
from tests.conftest import tiny_recipe, train_quietly
from tests.evaluation.conftest import untracked


def evaluate(run: Run, grid: Grid | None = None) -> None:
    grid = grid or Grid()
    check(run, grid)
    evaluate_ood(run, grid, "cpu", None, untracked)


def test_every_level_of_the_recipes_grid_is_written_with_metric_and_loss(run):
    evaluate(run)
    ood = run.read_table("ood")
    assert list(ood.columns) == ["perturbation", "gamma", "seed", "metric", "value", "n"]
    assert sorted(ood["gamma"].unique()) == [0, 0.5, 1]
    assert set(ood["metric"]) == {
        f"{name}{end}" for name in ("accuracy", "loss") for end in ("", "_low", "_high")
    }
    assert set(ood["n"]) == {40}


def test_another_grid_is_added_and_the_same_level_replaced(run):
    evaluate(run)
    before = run.read_table("ood")
    evaluate(run, Grid([0.5, 2.0], perturbations=["gaussian", "uniform"]))
    after = run.read_table("ood")
    assert sorted(after[after["perturbation"] == "gaussian"]["gamma"].unique()) == [0, 0.5, 1, 2]
    assert sorted(after[after["perturbation"] == "uniform"]["gamma"].unique()) == [0.5, 2]
    assert not after.duplicated(["perturbation", "gamma", "seed", "metric"]).any()
    merged = before.merge(after, on=["perturbation", "gamma", "seed", "metric"])
    assert merged["value_x"].tolist() == pytest.approx(merged["value_y"].tolist(), abs=1e-12)


def test_bf16_measures_what_autocast_computes_example_by_example(tmp_path):
    run = train_quietly(tiny_recipe("evaluation.precision=bf16"), tmp_path)
    evaluate(run)
    layerwise = training.load(run, "cpu", None)
    noise = NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, 0)
    layers = run.read_table("layers")
    for gamma in (0.0, 1.0):
        losses = {}
        for precision in ("fp32", "bf16"):
            found = []
            for batch in batches(
                layerwise.task, layerwise.task.examples("test"), 1, torch.device("cpu")
            ):
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    found.append(
                        layerwise.judge(batch, gamma * draw_noise(layerwise.model, batch, noise))[0]
                    )
            losses[precision] = torch.cat(found, dim=1).mean(dim=1).tolist()
        rows = layers[(layers["split"] == "test") & (layers["gamma"] == gamma)].sort_values("layer")
        # Padding changes the order of sums, and with it the last of the eight bits of bf16.
        assert rows["loss"].tolist() == pytest.approx(losses["bf16"], rel=3e-3)
        assert losses["bf16"] != pytest.approx(losses["fp32"], rel=1e-6)
        assert rows["loss"].tolist() != pytest.approx(losses["fp32"], rel=1e-6)
    assert not torch.is_autocast_enabled("cpu")


def test_noise_has_gamma_times_the_stored_sigma(run):
    evaluate(run, Grid([1.0]))
    once = run.read_table("ood")["value"].tolist()
    sigma_x = run.finished_info().sigma_x
    run.update_info(
        RunInfo(sigma_x=SigmaX(training=sigma_x.training, evaluation=sigma_x.evaluation / 2))
    )
    evaluate(run, Grid([2.0]))
    ood = run.read_table("ood")
    assert ood[ood["gamma"] == 2]["value"].tolist() == pytest.approx(once, abs=1e-6)


def test_other_noise_seeds_replace_every_level_of_their_kind_of_noise(run):
    evaluate(run, Grid(perturbations=["gaussian", "uniform"]))
    evaluate(run, Grid([0.0, 1.0], perturbations=["gaussian"], noise_seeds=[1, 2]))
    for name in ("ood", "layers", "ratios", "ratio_bins"):
        table = run.read_table(name)
        gaussian = table[table["perturbation"] == "gaussian"]
        if name == "layers":
            assert set(gaussian[gaussian["split"] == "validation"]["gamma"]) == {0.4}
            gaussian = gaussian[gaussian["split"] == "test"]
        own = set() if name == "ood" else {0.4}
        assert set(gaussian["gamma"]) == {0.0, 1.0} | own
        assert set(table[table["perturbation"] == "uniform"]["gamma"]) == {0.0, 0.5, 1.0} | own
    ood = run.read_table("ood")
    assert set(ood[ood["perturbation"] == "gaussian"]["seed"]) == {1, 2}
    assert set(ood[ood["perturbation"] == "uniform"]["seed"]) == {0}


def test_the_other_weights_are_evaluated_as_those_of_a_run_that_selected_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("cudt.method.objectives.Constrained.rank", lambda *_: [0.0])
    best = train_quietly(tiny_recipe(), tmp_path)
    last = train_quietly(tiny_recipe("training.select=last"), tmp_path)
    evaluate(best)
    evaluate(last)
    before = {path.name: path.read_bytes() for path in best.path.iterdir() if path.is_file()}
    assert best.with_weights("last").info().evaluated == {}
    evaluate(best.with_weights("last"))
    assert {
        path.name: path.read_bytes() for path in best.path.iterdir() if path.is_file()
    } == before
    for name in ("ood", "ratios", "ratio_bins"):
        assert (best.path / "last" / f"{name}.csv").read_bytes() == (
            last.path / f"{name}.csv"
        ).read_bytes()
        assert (best.path / f"{name}.csv").read_bytes() != (last.path / f"{name}.csv").read_bytes()
    # The signal of this model is learned, so each epoch has its own σ_x.
    sigmas = [run.finished_info().sigma_x for run in (best, best.with_weights("last"), last)]
    assert sigmas[0] != sigmas[1] == sigmas[2]
    assert best.with_weights("last").info().evaluated == last.info().evaluated
    # The subfolder is not a run.
    assert sorted(find_runs([tmp_path])) == sorted([best.path, last.path])


# ---------------------------------------------------------------- scores of single examples


def metrics_from_examples(run: Run) -> pd.Series[float]:
    """Σ w·score / Σ w by noise, level and noise seed."""
    rows = run.read_examples()
    rows["product"] = rows["score"] * rows["weight"].astype(float)
    sums = rows.groupby(["perturbation", "gamma", "seed"])[["product", "weight"]].sum()
    return sums["product"] / sums["weight"]


def metrics(run: Run, name: str = "accuracy") -> pd.Series[float]:
    ood = run.read_table("ood")
    return ood[ood["metric"] == name].set_index(["perturbation", "gamma", "seed"])["value"]


def test_the_mean_of_the_kept_scores_is_the_metric(run):
    evaluate(run, Grid(perturbations=["gaussian", "uniform"], noise_seeds=[0, 3]))
    evaluate(run, Grid([0.5, 2.0], perturbations=["gaussian"], noise_seeds=[0, 3]))
    wanted = metrics(run)
    # Three levels of each kind, one more of one of them, two draws each; γ_train = 0.4 was not
    # asked for.
    assert len(wanted) == 2 * (3 + 3 + 1)
    pd.testing.assert_series_equal(
        metrics_from_examples(run), wanted, check_names=False, rtol=1e-14
    )
    table = run.read_examples()
    assert not table.duplicated(["perturbation", "gamma", "seed", "id"]).any()
    assert table.groupby(["perturbation", "gamma", "seed"])["id"].nunique().eq(40).all()


def test_levels_that_other_processes_have_measured_give_the_same_bytes(run, tmp_path, monkeypatch):
    grid = Grid(perturbations=["gaussian", "uniform"], noise_seeds=[0, 1])
    other = Run(shutil.copytree(run.path, tmp_path / "other"), run.recipe)
    evaluate(run, grid)
    every = parts_of(other, grid)
    # Of both kinds and for both seeds, γ = 0, 0.5, 1 and γ_train = 0.4.
    assert len(every) == len(set(every)) == 2 * 2 * 4
    # Shares that cut across kinds and seeds; one level is left to the process that writes the
    # tables.
    for start, end in ((0, 3), (3, 10), (10, 15)):
        measure_parts(other, every[start:end], "cpu", None, untracked, tmp_path / "measured")
    measured: list[list[float]] = []
    real = evaluation._measure

    def watched(*given):
        measured.append(given[6])
        return real(*given)

    monkeypatch.setattr(evaluation, "_measure", watched)
    evaluate_ood(other, grid, "cpu", None, untracked, measured=tmp_path / "measured")
    assert measured == [[every[-1].gamma]]
    tables = [*run.path.glob("*.csv"), run.path / "examples.parquet"]
    assert {path.name: (other.path / path.name).read_bytes() for path in tables} == {
        path.name: path.read_bytes() for path in tables
    }
