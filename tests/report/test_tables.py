from __future__ import annotations

import math

import pytest

from cudt.evaluation.curves import area_under_curve
from cudt.report import tables
from cudt.report.collect import collect
from tests.report import GAMMA_TRAIN, INPUT_RMSE, REACH, make_run, make_video_run


def test_the_area_under_a_curve_is_that_of_its_trapezoids():
    # (1 + 0.8)/2 · 0.5 + (0.8 + 0.2)/2 · 1.5
    assert area_under_curve([0, 0.5, 2], [1, 0.8, 0.2]) == pytest.approx(1.2)
    assert math.isnan(area_under_curve([0.5], [0.9]))


def test_a_curve_has_mean_and_standard_deviation_over_seeds(trained_run, tmp_path):
    for seed, accuracy in enumerate([0.9, 0.6, 0.6]):
        make_run(trained_run, tmp_path, {0.0: accuracy, 1.0: 0.5}, seed=seed)
    curve = tables.curves(collect([tmp_path]).runs)
    assert curve["gamma"].tolist() == [0, 1]
    assert curve["mean"].tolist() == pytest.approx([0.7, 0.5])
    # Deviations of 0.2, −0.1 and −0.1 with n − 1 = 2.
    assert curve["std"].tolist() == pytest.approx([math.sqrt(0.06 / 2), 0])
    assert curve["seeds"].tolist() == [3, 3]
    assert curve["n"].tolist() == [40, 40]


def test_noise_seeds_are_averaged_and_do_not_count_as_seeds(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: [0.9, 0.7]})
    (row,) = tables.curves(collect([tmp_path]).runs).to_dict("records")
    assert row["mean"] == pytest.approx(0.8)
    assert row["seeds"] == 1
    assert math.isnan(row["std"])


def test_layer_losses_have_mean_and_standard_deviation_over_seeds(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9}, seed=0, losses=(0.6, 0.5, 0.4))
    make_run(trained_run, tmp_path, {0.0: 0.9}, seed=1, losses=(0.6, 0.3, 0.0))
    table = tables.layer_losses(collect([tmp_path]).runs)
    table = table[table["split"] == "test"]
    assert table["layer"].tolist() == [1, 2, 3]
    assert table["loss"].tolist() == pytest.approx([0.6, 0.4, 0.2])
    assert table["loss_std"].tolist() == pytest.approx([0, math.sqrt(0.02), math.sqrt(0.08)])
    assert table["seeds"].tolist() == [2, 2, 2]


def test_the_summary_splits_the_grid_at_the_training_level(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 1.0, GAMMA_TRAIN: 0.8, 0.5: 0.6, 1.0: 0.2})
    (row,) = tables.summary(collect([tmp_path]).runs).to_dict("records")
    assert row["id_mean"] == pytest.approx((1.0 + 0.8) / 2)
    assert row["ood_mean"] == pytest.approx((0.6 + 0.2) / 2)
    assert row["grid_mean"] == pytest.approx(2.6 / 4)
    assert row["auc"] == pytest.approx(0.4 * 0.9 + 0.1 * 0.7 + 0.5 * 0.4)
    assert row["range"] == "γ 0 to 1"


def test_the_summary_counts_seeds_that_are_feasible_and_monotone(trained_run, tmp_path):
    for seed, (feasible, monotone) in enumerate([(True, True), (False, True), (False, False)]):
        best = {"epoch": 1, "validation_loss": 0.1 * seed}
        make_run(
            trained_run,
            tmp_path,
            {0.0: 0.9},
            seed=seed,
            feasible=feasible,
            monotone=monotone,
            best=best,
        )
    (row,) = tables.summary(collect([tmp_path]).runs).to_dict("records")
    assert (row["seeds"], row["feasible"], row["monotone"]) == (3, 1, 2)
    assert row["validation_loss"] == pytest.approx(0.1)


def test_a_curve_has_only_levels_that_every_seed_was_evaluated_at(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 0.5: 0.8, 1.0: 0.7}, seed=0)
    make_run(trained_run, tmp_path, {0.0: 0.7, 1.0: 0.5, 2.0: 0.4}, seed=1)
    make_run(trained_run, tmp_path, None, seed=2)
    runs = collect([tmp_path]).runs
    curve = tables.curves(runs)
    assert curve["gamma"].tolist() == [0, 1]
    assert curve["mean"].tolist() == pytest.approx([0.8, 0.6])
    (line,) = tables.uneven_grids(runs)
    assert line.endswith("gaussian: not every seed was evaluated at γ = 0.5, 2")


def test_errors_are_summed_up_by_their_mean_and_further_metrics_stay_out_of_the_curve(
    trained_run, tmp_path
):
    make_video_run(trained_run, tmp_path / "a", {0.0: 10.0, GAMMA_TRAIN: 12.0, 1.0: 32.0})
    make_run(trained_run, tmp_path / "b", {0.0: 0.9, 1.0: 0.5})
    runs = collect([tmp_path]).runs
    curve = tables.curves(runs)
    errors = curve[curve["metric"] == "RMSE"]
    assert errors["mean"].tolist() == [10, 12, 32]
    assert errors["low"].tolist() == pytest.approx([10 - REACH, 12 - REACH, 32 - REACH])
    assert set(curve["metric"]) == {"RMSE", "accuracy"}
    summary = tables.summary(runs).set_index("metric")
    assert summary["grid_mean"].to_dict() == pytest.approx({"RMSE": 18, "accuracy": 0.7})
    assert summary["higher_is_better"].to_dict() == {"RMSE": False, "accuracy": True}


def test_the_noisy_input_of_video_is_in_curves_and_in_the_summary(trained_run, tmp_path):
    for seed in (0, 1):
        make_video_run(trained_run, tmp_path, {0.0: 9.0, 1.0: 12.0, 1.5: 13.5}, seed=seed)
    runs = collect([tmp_path]).runs
    assert tables.curves(runs)["input"].tolist() == [0, INPUT_RMSE, 1.5 * INPUT_RMSE]
    (row,) = tables.summary(runs).to_dict("records")
    assert row["input_mean"] == pytest.approx(2.5 * INPUT_RMSE / 3)
