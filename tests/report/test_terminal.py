from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table

from cudt.evaluation.curves import further_metrics
from cudt.evaluation.display import curve_table, ratio_table
from cudt.report import tables
from cudt.report.collect import collect
from cudt.report.terminal import summary_table
from tests.report import GAMMA_TRAIN, make_run, make_video_run

CURVE = {0.0: 1.0, GAMMA_TRAIN: 0.8, 1.0: 0.5}


def lines(table: Table) -> list[str]:
    """A table's lines on a terminal of eighty columns, gaps narrowed."""
    output = io.StringIO()
    Console(file=output, width=80).print(table)
    found = output.getvalue().splitlines()
    assert max(map(len, found)) <= 80
    return [" ".join(line.split()) for line in found]


def test_a_curve_has_a_row_for_each_level_and_its_area(trained_run, tmp_path):
    shown = lines(curve_table(make_run(trained_run, tmp_path, CURVE)))
    assert shown[1] == "noise level accuracy 95 % interval loss"
    assert shown[2:] == [
        "gaussian γ = 0 ID 1.0000 0.9500 to 1.0500 0.0000",
        "gaussian γ = 0.4 ID 0.8000 0.7500 to 0.8500 0.2000",
        "gaussian γ = 1 OOD 0.5000 0.4500 to 0.5500 0.5000",
        "gaussian AUC 0.7500 over γ 0 to 1",
    ]


def test_a_curve_under_discrete_noise_has_probabilities(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, {0.0: 1.0, 0.2: 0.5}, kind="discrete")
    shown = lines(curve_table(run))
    assert shown[2:] == [
        "discrete p = 0 ID 1.0000 0.9500 to 1.0500 0.0000",
        "discrete p = 0.2 OOD 0.5000 0.4500 to 0.5500 0.5000",
        "discrete AUC 0.1500 over p 0 to 0.2",
    ]


def test_a_curve_without_intervals_leaves_them_blank(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, {0.0: 1.0}, old=True)
    assert lines(curve_table(run))[2] == "gaussian γ = 0 ID 1.0000 0.0000"
    # An earlier version evaluated under one kind of noise, this one under another.
    new = make_run(trained_run, tmp_path / "new", {0.0: 1.0}, kind="uniform")
    run.write_table("ood", pd.concat([run.read_table("ood"), new.read_table("ood")]))
    shown = lines(curve_table(run))
    assert shown[2] == "gaussian γ = 0 ID 1.0000 0.0000"
    assert shown[3] == "uniform γ = 0 ID 1.0000 0.9500 to 1.0500 0.0000"


def test_ratios_are_shown_over_all_layers_at_each_level(trained_run, tmp_path):
    shown = lines(ratio_table(make_run(trained_run, tmp_path, CURVE, steps=(0.625, 0.25, 0.125))))
    assert shown[-2] == "noise level mean f_l / f_l−1 median steps that lower the loss"
    assert shown[-1] == "gaussian γ = 0.4 0.800 0.750 62.5%"


def test_a_curve_averages_noise_seeds(trained_run, tmp_path):
    shown = lines(curve_table(make_run(trained_run, tmp_path, {0.0: [1.0, 0.5]})))
    assert shown[2] == "gaussian γ = 0 ID 0.7500 0.7000 to 0.8000 0.2500"


@pytest.mark.parametrize("name", ["reviews-ut", "a-recipe-with-a-rather-long-name"])
def test_the_summary_fits_eighty_columns_with_every_number_whole(name, trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, name=name, feasible=True)
    make_run(trained_run, tmp_path, CURVE, name=name, objective="supervised")
    shown = lines(summary_table(tables.summary(collect([tmp_path]).runs)))
    text = "\n".join(shown)
    for part in ("1 of 1", "0 of 1", "0.9000", "0.5000", "0.7500", "gaussian", "supervised"):
        assert part in text
    # A long name may break over lines.
    assert name[:8] in text


def test_names_of_two_recipes_can_be_read_beside_variants(trained_run, tmp_path):
    for name in ("smoke-text", "shapes-dust"):
        for alpha in (0.1, 0.2):
            overrides = [f"descent.alpha={alpha}"]
            if name == "smoke-text":
                make_run(trained_run, tmp_path / name, CURVE, name=name, overrides=overrides)
            else:
                make_video_run(trained_run, tmp_path / name, ERRORS, name=name, overrides=overrides)
    shown = lines(summary_table(tables.summary(collect([tmp_path]).runs)))
    assert sum(line.startswith("smoke-text constrained") for line in shown) == 2
    assert sum(line.startswith("shapes-dus") for line in shown) == 2
    assert "16.17" in "\n".join(shown)


def test_of_many_rows_the_first_thirty_are_shown_and_the_rest_is_named(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    summary = tables.summary(collect([tmp_path]).runs)
    for count in (30, 31):
        shown = lines(summary_table(pd.concat([summary] * count)))
        assert sum("constrained" in line for line in shown) == 30
        assert ("the first 30 of 31 rows; table.csv has the rest" in shown) is (count == 31)


def test_the_caption_of_the_summary_says_what_the_numbers_are(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    _, _, *caption = lines(summary_table(tables.summary(collect([tmp_path]).runs)))
    assert " ".join(caption) == "mean accuracy over levels up to γ_train (ID) and above (OOD); AUC over γ 0 to 1"


def test_a_run_without_a_curve_has_blanks_in_the_summary(trained_run, tmp_path):
    make_run(trained_run, tmp_path)
    shown = lines(summary_table(tables.summary(collect([tmp_path]).runs)))
    assert shown[1] == "reviews-ut constrained 0 of 1 0 of 1"
    assert "nan" not in "\n".join(shown)


# ---------------------------------------------------------------- errors instead of accuracies


ERRORS = {0.0: 10.2, GAMMA_TRAIN: 12.8, 1.0: 25.5}


def test_a_curve_of_errors_has_its_mean_and_what_else_the_task_measures(trained_run, tmp_path):
    shown = lines(curve_table(make_video_run(trained_run, tmp_path, ERRORS)))
    assert shown[1] == "noise level RMSE 95 % interval PSNR input loss"
    assert shown[2:] == [
        "gaussian γ = 0 ID 10.20 10.15 to 10.25 27.96 0.00 2.663e+04",
        "gaussian γ = 0.4 ID 12.80 12.75 to 12.85 25.99 18.00 4.194e+04",
        "gaussian γ = 1 OOD 25.50 25.45 to 25.55 20.00 45.00 1.665e+05",
        "gaussian mean 16.17 of 3 levels 21.00",
    ]


def test_a_curve_of_large_errors_fits_eighty_columns(trained_run, tmp_path):
    shown = lines(curve_table(make_video_run(trained_run, tmp_path, {0.0: 103.7, 0.125: 254.9})))
    assert shown[2] == "gaussian γ = 0 ID 103.70 103.65 to 103.75 7.82 0.00 2.753e+06"


def test_a_single_level_has_neither_mean_nor_area(trained_run, tmp_path):
    for run in (make_video_run(trained_run, tmp_path, {0.0: 9.0}), make_run(trained_run, tmp_path, {0.0: 0.9})):
        assert len(lines(curve_table(run))) == 3


def test_further_metrics_are_what_is_neither_metric_nor_loss_nor_the_end_of_an_interval(trained_run, tmp_path):
    video = make_video_run(trained_run, tmp_path, ERRORS).read_table("ood")
    assert further_metrics(video, "RMSE") == ["PSNR", "input_RMSE"]
    assert further_metrics(make_run(trained_run, tmp_path, CURVE).read_table("ood"), "accuracy") == []


def test_the_summary_of_errors_has_their_mean_and_no_area(trained_run, tmp_path):
    make_video_run(trained_run, tmp_path, ERRORS)
    heading, row, *caption = lines(summary_table(tables.summary(collect([tmp_path]).runs)))
    assert heading == "recipe objective noise feasible monotone ID OOD mean"
    assert row == "shapes-dust constrained gaussian 0 of 1 0 of 1 11.50 25.50 16.17"
    assert " ".join(caption) == "mean RMSE over levels up to γ_train (ID) and above (OOD); mean over γ 0 to 1"


def test_a_summary_of_both_gives_each_row_its_own_number(trained_run, tmp_path):
    make_video_run(trained_run, tmp_path / "a", ERRORS, name="videos")
    make_run(trained_run, tmp_path / "b", CURVE, name="texts")
    heading, texts, videos, *caption = lines(summary_table(tables.summary(collect([tmp_path]).runs)))
    assert heading == "recipe objective noise feasible monotone ID OOD AUC/mean"
    assert texts == "texts constrained gaussian 0 of 1 0 of 1 0.9000 0.5000 0.7500"
    assert videos == "videos constrained gaussian 0 of 1 0 of 1 11.50 25.50 16.17"
    assert " ".join(caption).startswith("mean accuracy, RMSE over levels")
    assert " ".join(caption).endswith("; AUC/mean over γ 0 to 1")
