"""Which runs are compared in pairs, when there is no interval, and the table in a report."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cudt import report
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import Grid
from cudt.report import tables
from cudt.report.collect import collect
from cudt.runs.checksums import forget
from tests.conftest import tiny_recipe, train_quietly
from tests.report import make_scored_run
from tests.report.test_paired import LEVELS, by_quantity, compared, drawn

pytestmark = pytest.mark.usefixtures("no_figures")


# ---------------------------------------------------------------- what is compared


def test_every_variant_is_compared_with_every_like_erm(trained_run, tmp_path):
    for number, variant in enumerate(("a", "b")):
        make_scored_run(trained_run, tmp_path / variant, drawn(number), variant=variant)
    make_scored_run(trained_run, tmp_path, drawn(5), objective="erm", variant="e")
    make_scored_run(trained_run, tmp_path / "u", drawn(6), objective="erm", variant="u")
    table = compared(tmp_path)
    found = table[["variant", "against_variant"]].drop_duplicates()
    assert set(found.itertuples(index=False, name=None)) == {(v, e) for v in "ab" for e in "eu"}
    assert set(table["against"]) == {"erm"}
    assert len(table) == 4 * (len(LEVELS) + 4)


@pytest.mark.parametrize(
    "erm",
    [
        {"gamma_train": 1.0},
        {"layers": 9},
        {"name": "imdb-ut"},
        {"kind": "uniform"},
        {"objective": "constrained"},
    ],
)
def test_unlike_runs_are_not_compared(erm, trained_run, tmp_path):
    make_scored_run(trained_run, tmp_path, drawn(1))
    make_scored_run(trained_run, tmp_path / "erm", drawn(2), **{"objective": "erm", **erm})
    assert compared(tmp_path).empty


def test_only_levels_and_examples_that_both_have_are_compared(trained_run, tmp_path):
    names = [f"{number:02}" for number in range(40)]
    ours, erm = drawn(1), drawn(2)
    make_scored_run(trained_run, tmp_path, ours, ids=names)
    make_scored_run(
        trained_run, tmp_path, {g: erm[g][10:] for g in (0.0, 1.0)}, ids=names[10:], objective="erm"
    )
    table = by_quantity(compared(tmp_path))
    assert list(table.index) == ["0.0", "1.0", "auc", "mean", "id_mean", "ood_mean"]
    assert set(table["n"]) == {30}
    assert table["difference"]["0.0"] == pytest.approx((ours[0.0][10:] - erm[0.0][10:]).mean())


# ---------------------------------------------------------------- without an interval


def assert_refused(table: pd.DataFrame, reason: str, difference: float) -> None:
    assert table[["low", "high"]].isna().all(axis=None)
    assert set(table["better"]) == {""}
    assert all(reason in found for found in table["reason"])
    assert by_quantity(table)["difference"]["mean"] == pytest.approx(difference)


def test_runs_on_other_test_data_have_no_interval(trained_run, tmp_path):
    for number, objective in enumerate(("constrained", "erm")):
        scores = {g: np.full(40, 0.5 + number / 4) for g in LEVELS}
        make_scored_run(trained_run, tmp_path, scores, objective=objective, test_data=objective)
    assert_refused(compared(tmp_path), "tested on different data", -0.25)


def test_runs_under_other_noise_seeds_have_no_interval(trained_run, tmp_path):
    for number, objective in enumerate(("constrained", "erm"), 1):
        scores = {g: np.full((40, number), number / 4) for g in LEVELS}
        make_scored_run(trained_run, tmp_path, scores, objective=objective)
    assert_refused(compared(tmp_path), "noise seeds differ: [0] and [0, 1]", -0.25)


def test_scores_that_are_not_those_behind_the_curve_are_refused(trained_run, tmp_path):
    runs = [
        make_scored_run(
            trained_run, tmp_path, {g: np.full(40, 0.5) for g in LEVELS}, objective=objective
        )
        for objective in ("constrained", "erm")
    ]
    rows = runs[0].read_examples()
    forget(runs[0].path, "examples.parquet")
    rows.assign(score=rows["score"] + 0.01).to_parquet(
        runs[0].path / "examples.parquet", index=False
    )
    assert_refused(compared(tmp_path), "does not give the metric in ood.csv", 0.0)


def test_a_damaged_file_of_scores_is_a_warning_and_the_report_is_made(trained_run, tmp_path):
    make_scored_run(trained_run, tmp_path / "runs", drawn(1))
    broken = make_scored_run(trained_run, tmp_path / "runs", drawn(2), objective="erm")
    (broken.path / "examples.parquet").write_text("junk")
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    assert [f"{broken.path}/examples.parquet: damaged" in warning for warning in made.warnings] == [
        True
    ]
    table = pd.read_csv(tmp_path / "report" / "paired.csv")
    assert table["reason"].str.contains("damaged").all()


# ---------------------------------------------------------------- in a report


def test_trained_and_evaluated_runs_are_compared(tmp_path):
    for objective in ("constrained", "erm"):
        run = train_quietly(tiny_recipe("training.epochs=1", objective=objective), tmp_path)
        evaluate_ood(
            run, Grid(noise_seeds=[0, 1]), "cpu", None, lambda batches, total, what: batches
        )
    table = by_quantity(compared(tmp_path))
    assert set(table["reason"]) == {""}
    assert set(table["unit"]) == {"examples"}
    assert (table["low"] <= table["high"]).all()
    summary = tables.summary(collect([tmp_path]).runs).set_index("objective")["auc"]
    assert table["difference"]["auc"] == pytest.approx(
        summary["constrained"] - summary["erm"], abs=1e-12
    )
