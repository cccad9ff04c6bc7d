"""Constrained against ERM on the page: the rows, the sentence above them, and how they are shown."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudt.report import page
from cudt.report.collect import Collected, collect
from cudt.report.headline import verdict
from cudt.runs.run import Run
from tests.report import make_run
from tests.report.figures import variant_of
from tests.report.test_page import CURVES, Parsed, _without_plotly, material, pair, pair_page, rendered
from tests.report.test_paper_results import scored

__all__ = ["_without_plotly", "pair", "pair_page"]


def compared(folder: Path) -> list[dict[str, Any]]:
    return material(folder).comparisons


def test_the_comparison_is_that_of_the_summary_and_says_why_there_is_no_interval(pair, pair_page):
    (row,) = compared(pair)
    assert row["recipe"] == "reviews-ut"
    assert row["label"] == "constrained"
    assert row["setting"].endswith("γ_train = 0.4, gaussian")
    assert (row["metric"], row["arrow"]) == ("accuracy", "↑")
    assert row["id_mean_constrained"] == pytest.approx(0.85)
    assert row["id_mean_erm"] == pytest.approx(0.85)
    assert (row["ood_mean_constrained"], row["ood_mean_erm"]) == (0.7, 0.5)
    assert row["difference"] == pytest.approx(0.2)
    assert (row["unit"], row["better"]) == ("", "")
    assert "no scores of single examples" in row["reason"]
    assert verdict([row]) == "Out of distribution, of 1 comparison: 1 has no interval."
    assert row["runs"] == "1 seed"
    text = Parsed(pair_page).text
    assert "+0.2" in text
    assert "Why 1 comparison has no interval" in text
    assert row["reason"] in text


@pytest.mark.parametrize("better", ["constrained", "erm", None])
def test_the_better_one_is_bold(better, trained_run, tmp_path):
    scored(trained_run, tmp_path, better)
    (row,) = compared(tmp_path)
    assert row["better"] == (better or "")
    assert row["unit"] == "examples"
    html = rendered(tmp_path)
    bold = re.findall(r"<b>(.*?)</b>", html.split('id="rule"')[0])
    assert bold == ([f"{row[f'ood_mean_{better}']:.5g}"] if better else [])


def test_the_verdict_counts_every_comparison_and_keeps_single_runs_apart_from_seeds():
    rows = [
        *({"better": "constrained", "unit": "examples", "low": 0.1, "high": 0.2} for _ in range(3)),
        {"better": "erm", "unit": "examples", "low": -0.2, "high": -0.1},
        {"better": "erm", "unit": "seeds", "low": -0.2, "high": -0.1},
        {"better": "", "unit": "seeds", "low": 0.1, "high": 0.2},
        {"better": "", "unit": "seeds paired", "low": -0.1, "high": 0.2},
        {"better": "", "unit": "", "low": math.nan, "high": math.nan},
    ]
    assert verdict(rows) == (
        "Out of distribution, of 8 comparisons: 1 favours the unconstrained model, 1 shows no clear difference, "
        "1 has unequal numbers of runs (intervals over training seeds); "
        "3 favour the constrained model, 1 favours the unconstrained model "
        "(intervals over test examples of single runs, which say nothing about other training seeds); "
        "1 has no interval."
    )
    assert verdict(rows[-2:]) == (
        "Out of distribution, of 2 comparisons: 1 shows no clear difference (intervals over training seeds); "
        "1 has no interval."
    )
    assert verdict([]) == ""


def test_without_a_run_of_each_objective_there_is_no_comparison(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9})
    assert compared(tmp_path) == []
    assert "Constrained against ERM" not in rendered(tmp_path)


def test_a_side_that_is_not_evaluated_names_the_command(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5})
    erm = make_run(trained_run, tmp_path, None, objective="erm")
    (row,) = compared(tmp_path)
    assert row["reason"] == f"not evaluated: cudt eval-ood {erm.path}"
    assert (row["ood_mean_constrained"], row["unit"], row["better"]) == (0.5, "", "")
    html = rendered(tmp_path)
    assert row["reason"] in Parsed(html).text
    assert ">nan<" not in html


def test_noise_that_erm_alone_was_evaluated_under_is_no_comparison(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.7})
    for kind in ("gaussian", "uniform"):
        make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.5}, objective="erm", kind=kind)
    (row,) = compared(tmp_path)
    assert row["setting"].endswith("gaussian")


def test_runs_of_another_training_level_are_not_compared(trained_run, tmp_path):
    curve = {0.0: 0.9, 1.0: 0.5}
    make_run(trained_run, tmp_path, curve)
    make_run(trained_run, tmp_path, curve, objective="erm", gamma_train=1.0)
    assert compared(tmp_path) == []


def test_without_a_level_in_common_there_is_no_difference_and_this_is_why(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5})
    make_run(trained_run, tmp_path, {0.25: 0.9, 2.0: 0.5}, objective="erm")
    (row,) = compared(tmp_path)
    assert row["reason"] == "no level in common"
    assert math.isnan(row["difference"])
    assert "Why 1 comparison has no interval" in Parsed(rendered(tmp_path)).text


def test_without_levels_above_training_nothing_is_said_about_out_of_distribution(trained_run, tmp_path):
    for objective in ("constrained", "erm"):
        make_run(trained_run, tmp_path, {0.0: 0.875}, objective=objective)
    (row,) = compared(tmp_path)
    assert row["reason"] == "no level for the ood mean"
    assert math.isnan(row["difference"])
    assert (row["id_mean_constrained"], row["id_mean_erm"]) == (0.875, 0.875)
    html = rendered(tmp_path)
    assert ">nan<" not in html


def make_searched(trained_run: Run, out: Path) -> None:
    """Three variants of the constrained model, the second the best by validation data, and one ERM."""
    for alpha, loss, value in ((0.1, 0.5, 0.7), (0.2, 0.3, 0.6), (0.3, 0.4, 0.8)):
        make_run(
            trained_run,
            out,
            {0.0: 0.9, 1.0: value},
            overrides=[f"descent.alpha={alpha}"],
            best={"epoch": 1, "validation_loss": loss},
        )
    make_run(trained_run, out, {0.0: 0.9, 1.0: 0.5}, objective="erm")


def test_of_several_variants_the_best_by_validation_data_is_compared(trained_run, tmp_path):
    make_searched(trained_run, tmp_path)
    (row,) = compared(tmp_path)
    assert row["label"] == "constrained α=0.2"
    assert row["ood_mean_constrained"] == 0.6
    assert row["runs"] == "best of 3 against best of 1"
    assert "<td>best of 3 against best of 1</td>" in rendered(tmp_path)


def test_runs_without_a_comparison_are_on_the_page(trained_run, tmp_path):
    make_searched(trained_run, tmp_path)
    made = material(tmp_path)
    kept = [run for run in made.compared if run.objective == "erm" or run.settings["descent.alpha"] == 0.1]
    (row,) = replace(made, compared=kept).comparisons
    assert (row["label"], row["runs"]) == ("constrained α=0.1", "1 seed")
    text = Parsed(page.render(replace(made, compared=kept))).text
    assert all(f"constrained α={alpha}, seed 0" in text for alpha in (0.1, 0.2, 0.3))


def test_erm_runs_with_different_model_settings_are_compared_separately(pair):
    constrained, erm = collect([pair]).runs
    other = variant_of(erm, "other", {"model": {"width": 32}})
    rows = material(Collected([constrained, erm, other], [])).comparisons
    assert len(rows) == 2
    assert ["ERM with other model settings" in row["setting"] for row in rows] == [False, True]
    assert [row["runs"] for row in rows] == ["1 seed", "1 seed"]
    # A constrained run with the same model settings is compared with it.
    wide = variant_of(constrained, "wide", {"model": {"width": 32}})
    rows = material(Collected([constrained, wide, erm, other], [])).comparisons
    assert not any("other model settings" in row["setting"] for row in rows)
    assert [row["runs"] for row in rows] == ["1 seed", "1 seed"]


@pytest.mark.parametrize("sections", [{"task": {"train": 50}}, {"task": {"test": 50}}])
def test_runs_on_other_data_are_not_compared(sections, pair):
    constrained, erm = collect([pair]).runs
    assert material(Collected([constrained, variant_of(erm, "other", sections)], [])).comparisons == []


def test_under_discrete_noise_probabilities_above_0_are_out_of_distribution(trained_run, tmp_path):
    for objective, damaged in (("constrained", 0.75), ("erm", 0.625)):
        make_run(trained_run, tmp_path, {0.0: 0.9, 0.1: damaged}, objective=objective, kind="discrete")
    (row,) = compared(tmp_path)
    assert row["setting"].endswith("discrete")
    assert (row["ood_mean_constrained"], row["ood_mean_erm"], row["id_mean_erm"]) == (0.75, 0.625, 0.9)


def test_an_infeasible_run_is_marked_and_its_layers_are_named(trained_run, tmp_path):
    verdicts = [dict(verdict, verdict="violated") for verdict in trained_run.finished_info().verdicts]
    for objective, curve in CURVES.items():
        make_run(trained_run, tmp_path, curve, objective=objective, feasible=False, verdicts=verdicts)
    (row,) = compared(tmp_path)
    assert row["infeasible"] == "seed 0: violated at layers 1–3"
    html = rendered(tmp_path)
    assert '<span class="infeasible">infeasible (violated at layers 1–3)</span>' in html
    # ERM has no constraints that it could break.
    assert html.count(">infeasible (") == 1
