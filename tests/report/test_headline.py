"""Constrained against ERM on the page: the rows, the sentence above them, and how they are
shown."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cudt.report.headline import verdict
from tests.report import make_run
from tests.report.test_page import (
    CURVES,
    Parsed,
    _without_plotly,
    material,
    pair,
    pair_page,
    rendered,
)

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
        "Out of distribution, of 8 comparisons: 1 favours the unconstrained model, 1 shows no "
        "clear difference, "
        "1 has unequal numbers of runs (intervals over training seeds); "
        "3 favour the constrained model, 1 favours the unconstrained model "
        "(intervals over test examples of single runs, which say nothing about other training "
        "seeds); "
        "1 has no interval."
    )
    assert verdict(rows[-2:]) == (
        "Out of distribution, of 2 comparisons: 1 shows no clear difference (intervals over "
        "training seeds); "
        "1 has no interval."
    )
    assert verdict([]) == ""


def test_without_a_run_of_each_objective_there_is_no_comparison(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9})
    assert compared(tmp_path) == []
    assert "Constrained against ERM" not in rendered(tmp_path)


def test_an_infeasible_run_is_marked_and_its_layers_are_named(trained_run, tmp_path):
    verdicts = [
        dict(verdict, verdict="violated") for verdict in trained_run.finished_info().verdicts
    ]
    for objective, curve in CURVES.items():
        make_run(
            trained_run, tmp_path, curve, objective=objective, feasible=False, verdicts=verdicts
        )
    (row,) = compared(tmp_path)
    assert row["infeasible"] == "seed 0: violated at layers 1–3"
    html = rendered(tmp_path)
    assert '<span class="infeasible">infeasible (violated at layers 1–3)</span>' in html
    # ERM has no constraints that it could break.
    assert html.count(">infeasible (") == 1
