"""The table of runs on data that they were never trained on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cudt import report
from cudt.report import other_data
from cudt.report.collect import collect
from cudt.runs.info import RunInfo
from cudt.runs.run import Run
from cudt.tasks import imdb
from cudt.tasks.other_data import OtherData
from tests.examples import by_part
from tests.report import make_run, make_scored_run

#: The 97.5 % quantile of Student's t with two degrees of freedom.
T_2 = 4.302653
#: The accuracy on the other data at γ = 0, of three seeds; at γ = 1 it is 0.2 lower.
ACCURACY = {"constrained": (0.9, 0.86, 0.88), "erm": (0.8, 0.82, 0.78), "supervised": (0.85, 0.85, 0.88)}
EXAMPLES = 30


def plant(run: Run, name: str, accuracy: float) -> Run:
    """Plant results of a run on other data: every example has the same score, so that only seeds vary."""
    other = run.on(OtherData(name, imdb.Config(name="imdb")))
    other.update_info(RunInfo(test_data="b5cf52327d1612ea"))
    levels = {0.0: accuracy, 1.0: accuracy - 0.2}
    ood = [("gaussian", gamma, 0, "accuracy", value, EXAMPLES) for gamma, value in levels.items()]
    other.write_table("ood", pd.DataFrame(ood, columns=["perturbation", "gamma", "seed", "metric", "value", "n"]))
    ids = [f"test-{number}" for number in range(EXAMPLES)]
    rows = [
        pd.DataFrame({"gamma": gamma, "seed": 0, "id": ids, "weight": 1.0, "score": value})
        for gamma, value in levels.items()
    ]
    other.merge_examples(by_part(pd.concat(rows).assign(perturbation="gaussian")), ["perturbation", "gamma"])
    return other


@pytest.fixture(scope="module")
def written(trained_run, tmp_path_factory) -> Path:
    tmp_path = tmp_path_factory.mktemp("other-data")
    for objective, of_seeds in ACCURACY.items():
        for seed, accuracy in enumerate(of_seeds):
            # On its own data the order is another one.
            scores = {gamma: np.full(EXAMPLES, 0.5 - 0.1 * gamma) for gamma in (0.0, 1.0)}
            run = make_scored_run(trained_run, tmp_path / "runs", scores, objective=objective, seed=seed)
            plant(run, "imdb", accuracy)
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    assert not [line for line in made.warnings if "on-imdb" in line]
    return tmp_path / "report"


def test_means_and_paired_differences_over_seeds(written):
    table = pd.read_csv(written / "tables" / "other-data.csv").set_index(["objective", "against"])
    assert [*table.index] == [("constrained", "erm"), ("constrained", "supervised"), ("supervised", "erm")]
    for objective, against in table.index:
        row, ours, theirs = table.loc[objective, against], ACCURACY[objective], ACCURACY[against]
        assert (row["recipe"], row["data"], row["gamma_train"], row["levels"]) == ("reviews-ut", "imdb", 0.4, 2)
        assert (row["seeds"], row["against_seeds"], row["unit"], row["n"]) == (3, 3, "seeds paired", 3)
        # The mean over both levels is 0.1 below that at γ = 0.
        assert row["mean"] == pytest.approx(np.mean(ours) - 0.1)
        assert row["against_mean"] == pytest.approx(np.mean(theirs) - 0.1)
        assert row["std"] == pytest.approx(np.std(ours, ddof=1))
        differences = np.subtract(ours, theirs)
        reach = T_2 * np.std(differences, ddof=1) / math.sqrt(3)
        assert row["difference"] == pytest.approx(differences.mean())
        assert (row["low"], row["high"]) == pytest.approx(
            (differences.mean() - reach, differences.mean() + reach), abs=1e-6
        )


def test_the_table_is_written_for_people_too(written):
    lines = (written / "tables" / "other-data.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "## Mean accuracy on other test data"
    assert lines[4].startswith("| reviews-ut | imdb | 3 | 0.4 | gaussian | ")
    assert "0.780 (3 seeds)" in lines[4]
    assert "0.700 (3 seeds)" in lines[4]
    assert "+0.080" in lines[4]
    assert r"\begin{tabular}" in (written / "tables" / "other-data.tex").read_text(encoding="utf-8")
    assert "Other test data" in (written / "index.html").read_text(encoding="utf-8")


def test_a_run_without_a_partner_has_its_mean_and_a_damaged_folder_is_a_warning(trained_run, tmp_path):
    alone = make_run(trained_run, tmp_path / "runs", {0.0: 1.0})
    plant(alone, "imdb", 0.7)
    broken = plant(make_run(trained_run, tmp_path / "runs", {0.0: 1.0}, seed=1), "imdb", 0.7)
    (broken.results / "ood.csv").write_text("gone")
    made = other_data.collect(collect([tmp_path / "runs"]).runs)
    assert len(made.warnings) == 1
    assert "on-imdb/ood.csv: damaged" in made.warnings[0]
    (row,) = made.numbers.to_dict("records")
    assert (row["objective"], row["seeds"], row["mean"]) == ("constrained", 1, pytest.approx(0.6))
    assert pd.isna(row["against"])
    assert made.text.markdown().splitlines()[4].endswith("| 0.600 (1 seed) |  |  |  |")


def test_without_such_runs_there_is_no_table(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", {0.0: 1.0})
    made = other_data.collect(collect([tmp_path / "runs"]).runs)
    assert made.numbers.empty


def test_variants_are_named_and_compared_with_the_same_model(trained_run, tmp_path):
    scores = {gamma: np.full(EXAMPLES, 0.5) for gamma in (0.0, 1.0)}
    for width, accuracy in ((8, 0.9), (16, 0.7)):
        for objective in ("constrained", "erm"):
            overrides = [f"model.width={width}"]
            run = make_scored_run(trained_run, tmp_path, scores, objective=objective, overrides=overrides)
            plant(run, "imdb", accuracy)
    table = other_data.collect(collect([tmp_path]).runs).numbers
    named = [*zip(table["label"], table["against_label"], strict=True)]
    assert sorted(named) == [(f"constrained width={width}", f"erm width={width}") for width in (16, 8)]
    assert table["difference"].tolist() == [0, 0]


def test_a_model_without_a_partner_is_compared_with_another(trained_run, tmp_path):
    scores = {gamma: np.full(EXAMPLES, 0.5) for gamma in (0.0, 1.0)}
    for objective, width in (("constrained", 8), ("erm", 16)):
        run = make_scored_run(trained_run, tmp_path, scores, objective=objective, overrides=[f"model.width={width}"])
        plant(run, "imdb", 0.8)
    table = other_data.collect(collect([tmp_path]).runs).numbers
    assert [*zip(table["label"], table["against_label"], strict=True)] == [("constrained", "erm")]
