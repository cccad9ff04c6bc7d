from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cudt import report
from cudt.report.collect import collect
from cudt.report.decision import (
    COLUMNS,
    MEASURES,
    correlate,
    correlations,
    decision_layer,
    decisions,
    panels,
    spearman,
    table,
)
from cudt.runs.run import Run
from cudt.runs.tables import TABLES
from tests.report import GAMMA_TRAIN, make_run, make_video_run
from tests.report.figures import variant_of


def make_layers(trained: Run, out: Path, accuracies: Sequence[float], ood: float = 0.6, **changes: Any) -> Run:
    """A run whose layers have these test accuracies at γ_train, with this OOD accuracy at γ = 1 and 2."""
    run = make_run(trained, out, {0.0: 0.9, 1.0: ood, 2.0: ood}, **{"losses": (0.6, 0.5, 0.4), **changes})
    rows = run.read_table("layers")
    here = (rows["split"] == "test") & (rows["gamma"] == GAMMA_TRAIN)
    rows.loc[here, "metric"] = list(accuracies)
    run.write_table("layers", rows[TABLES["layers"]])
    return run


@pytest.mark.parametrize(
    ("accuracies", "chance", "wanted"),
    [
        # 0.5 + 0.9·0.4 = 0.86
        ([0.5, 0.6, 0.85, 0.9], 0.5, 4),
        ([0.5, 0.6, 0.87, 0.9], 0.5, 3),
        # Exactly at the threshold counts, whatever rounding does.
        ([0.5, 0.86, 0.6, 0.9], 0.5, 2),
        # 1/3 + 0.9·0.3 = 0.603
        ([0.34, 0.61, 0.633], 1 / 3, 2),
        # Layers above the last one.
        ([0.95, 0.6, 0.9], 0.5, 1),
        ([0.8], 0.5, 1),
        # The last layer has learned nothing.
        ([0.7, 0.5], 0.5, math.nan),
        ([0.7, math.nan], 0.5, math.nan),
        ([], 0.5, math.nan),
    ],
)
def test_the_decision_layer_is_the_first_with_nine_tenths_above_chance(accuracies, chance, wanted):
    assert decision_layer(accuracies, chance) == pytest.approx(wanted, nan_ok=True)


def test_a_run_in_numbers(trained_run, tmp_path):
    make_layers(trained_run, tmp_path, [0.5, 0.87, 0.9], losses=(0.8, 0.5, 0.4), reference=0.7)
    (row,) = table(decisions(collect([tmp_path]).runs)).to_dict("records")
    wanted = {"chance": 0.5, "accuracy": 0.9, "decision_layer": 2, "decision_share": 2 / 3, "layers": 3, "seed": 0}
    # Layer 1 is worse than f_0; (0.9 + 0.6)/2 + 0.6 is the area.
    wanted |= {"descending_share": 2 / 3, "id_mean": 0.9, "ood_mean": 0.6, "auc": 1.35, "gamma_train": 0.4}
    assert {key: row[key] for key in wanted} == pytest.approx(wanted)
    assert (row["recipe"], row["objective"], row["label"], row["levels"]) == (
        *("reviews-ut", "constrained", "constrained"),
        "0 1 2",
    )


def test_without_a_number_of_classes_chance_is_the_smallest_accuracy_of_any_run(trained_run, tmp_path):
    make_layers(trained_run, tmp_path, [0.3, 0.8, 0.9])
    make_layers(trained_run, tmp_path, [0.7, 0.8, 0.9], objective="supervised")
    runs = collect([tmp_path]).runs
    unknown = [variant_of(run, run.info.variant, {"task": {"n_classes": None}}) for run in runs]
    counted = [variant_of(run, run.info.variant, {"task": {"classes": 4}}) for run in runs]
    assert [one.chance for mine in decisions(unknown).values() for one in mine] == [0.3, 0.3]
    assert [one.chance for mine in decisions(counted).values() for one in mine] == [0.25, 0.25]


def test_runs_that_do_not_classify_or_were_not_evaluated_have_no_row(trained_run, tmp_path):
    make_video_run(trained_run, tmp_path, {0.0: 5.0, 1.0: 9.0})
    make_run(trained_run, tmp_path, objective="erm")
    found = decisions(collect([tmp_path]).runs)
    assert found == {}
    assert list(table(found)) == COLUMNS


# ---------------------------------------------------------------- correlations


def test_spearman_is_the_correlation_of_ranks():
    # Σd² = 0 + 1 + 1 + 0 + 1 + 1 = 4 and ρ = 1 − 6·4 / (6·35).
    assert spearman([1, 2, 3, 4, 5, 6], [10, 30, 20, 40, 60, 50]) == pytest.approx(1 - 24 / 210)
    # Ties share their mean rank: ranks 1.5, 1.5, 3.5, 3.5, 5.5, 5.5.
    assert spearman([1, 1, 2, 2, 3, 3], [1, 2, 3, 4, 5, 6]) == pytest.approx(np.sqrt(16 / 17.5))
    assert math.isnan(spearman([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]))
    assert math.isnan(spearman([1] * 6, [1, 2, 3, 4, 5, 6]))


def make_six(trained: Run, out: Path) -> None:
    """Three runs each of two objectives: one decides early and is robust; within both, early runs are less robust."""
    early, middle, late = (0.9, 0.9, 0.9), (0.5, 0.9, 0.9), (0.5, 0.5, 0.9)
    for seed, (accuracies, ood) in enumerate([(early, 0.8), (middle, 0.85), (middle, 0.86)]):
        make_layers(trained, out, accuracies, ood, seed=seed, objective="supervised")
    for seed, (accuracies, ood) in enumerate([(middle, 0.5), (late, 0.55), (late, 0.56)]):
        make_layers(trained, out, accuracies, ood, seed=seed, objective="erm", losses=(0.6, 0.7, 0.4))


def test_correlations_over_runs_and_within_objectives(trained_run, tmp_path):
    make_six(trained_run, tmp_path)
    (panel,) = panels(decisions(collect([tmp_path]).runs))
    found = correlate(panel, "decision_share")
    assert (found.runs, found.runs_within, panel.left_out) == (6, 6, 0)
    # Over all runs early decisions go with robustness, within objectives late ones do.
    x, y = [1, 2, 2, 2, 3, 3], [0.8, 0.85, 0.86, 0.5, 0.55, 0.56]
    assert found.over_all == pytest.approx(pd.Series(x).rank().corr(pd.Series(y).rank()))
    assert found.over_all < 0
    ranks = [1.5, 4.5, 4.5, 1.5, 4.5, 4.5], [1.5, 3.5, 5.5, 1.5, 3.5, 5.5]
    assert found.within == pytest.approx(np.corrcoef(*ranks)[0, 1])
    # The residuals of the ranks of both after a regression on the ranks of the descent.
    z = pd.Series([1, 1, 1, 0, 0, 0]).rank()
    left = [values - np.polyval(np.polyfit(z, values, 1), z) for values in (pd.Series(x).rank(), pd.Series(y).rank())]
    assert found.other_fixed == pytest.approx(np.corrcoef(*left)[0, 1])
    # All runs of an objective have the same share of layers that lower the loss.
    assert math.isnan(correlate(panel, "descending_share").within)
    assert correlations([panel])["measure"].tolist() == list(MEASURES)


def test_an_objective_with_one_run_does_not_count_within(trained_run, tmp_path):
    make_six(trained_run, tmp_path)
    make_layers(trained_run, tmp_path, [0.9, 0.9, 0.9], 0.1)
    (panel,) = panels(decisions(collect([tmp_path]).runs))
    found = correlate(panel, "decision_share")
    assert (found.runs, found.runs_within) == (7, 6)


def test_runs_at_other_levels_or_at_chance_are_left_out(trained_run, tmp_path):
    make_six(trained_run, tmp_path)
    make_layers(trained_run, tmp_path, [0.5, 0.5, 0.5], seed=3, objective="erm")
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.5: 0.6}, seed=4, objective="erm")
    found = decisions(collect([tmp_path]).runs)
    (panel,) = panels(found)
    assert (len(panel.shown), panel.left_out) == (6, 2)
    assert len(table(found)) == 8


def test_fewer_than_six_runs_have_no_panel(trained_run, tmp_path):
    make_six(trained_run, tmp_path)
    runs = collect([tmp_path]).runs
    assert panels(decisions(runs[1:])) == []
    assert correlations([]).empty


def test_a_report_writes_both_tables(trained_run, tmp_path):
    make_six(trained_run, tmp_path / "runs")
    report.write([tmp_path / "runs"], tmp_path / "report")
    assert len(pd.read_csv(tmp_path / "report" / "decision.csv")) == 6
    assert len(pd.read_csv(tmp_path / "report" / "decision_correlations.csv")) == 2
    assert (tmp_path / "report" / "figures" / "descent-or-decision.png").is_file()
    assert (tmp_path / "report" / "tables" / "decision-correlations.md").is_file()
    assert "Descent or early decisions" in (tmp_path / "report" / "index.html").read_text()
