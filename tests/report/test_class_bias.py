from __future__ import annotations

import pandas as pd
import pytest

from cudt import report
from cudt.evaluation.recalls import detection
from cudt.report import class_bias
from cudt.report.collect import collect
from cudt.runs.run import Run
from tests.report import make_run, plant_recalls
from tests.report.figures import groups_of

LEANING = {0.0: (0.8, 0.8), 2.0: (0.95, 0.15)}
CURVE = {0.0: 0.8, 2.0: 0.55}


@pytest.fixture
def leaning(trained_run: Run, tmp_path) -> Run:
    run = make_run(trained_run, tmp_path / "runs", CURVE)
    plant_recalls(run, LEANING)
    return run


def test_the_table_has_both_recalls_and_what_follows_from_them(leaning, tmp_path):
    table = class_bias.table(collect([tmp_path / "runs"]).runs)
    assert [*table] == class_bias.COLUMNS
    clean, noisy = table.to_dict("records")
    assert (clean["gamma"], clean["distribution"], noisy["gamma"], noisy["distribution"]) == (0.0, "ID", 2.0, "OOD")
    assert (noisy["recall_0"], noisy["recall_1"], noisy["accuracy"]) == pytest.approx((0.95, 0.15, 0.55))
    assert (noisy["unbiased"], noisy["bias"]) == pytest.approx(detection(0.95, 100, 0.15, 100))
    assert clean["bias"] == pytest.approx(0)
    assert noisy["bias"] > 1


def test_runs_without_recalls_or_with_three_classes_have_no_rows(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    plant_recalls(make_run(trained_run, tmp_path, CURVE, seed=1), {0.0: (0.8, 0.8, 0.8)})
    table = class_bias.table(collect([tmp_path]).runs)
    assert [*table] == class_bias.COLUMNS
    assert table.empty


def test_recalls_are_means_over_noise_seeds_and_seeds(trained_run, tmp_path):
    for seed, recall in enumerate((0.4, 0.6)):
        plant_recalls(run := make_run(trained_run, tmp_path, CURVE, seed=seed), {2.0: (recall, 0.5)})
        again = run.read_table("recalls").assign(seed=1, recall=lambda rows: rows["recall"] + 0.1)
        run.write_table("recalls", pd.concat([run.read_table("recalls"), again]))
    (group,) = groups_of(tmp_path)
    found = class_bias.by_level(group, "gaussian").set_index("class")
    assert found["mean"].tolist() == pytest.approx([0.55, 0.55])
    assert found.loc[0, "std"] == pytest.approx(0.2 / 2**0.5)


def test_a_report_has_the_numbers_the_figure_and_the_section(leaning, trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", CURVE, objective="erm")
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    assert made.warnings == []
    assert len(pd.read_csv(tmp_path / "report" / "class_bias.csv")) == 2
    assert (tmp_path / "report" / "figures" / "reviews-ut-class-recall.png").is_file()
    text = (tmp_path / "report" / "tables" / "reviews-ut-class-bias.md").read_text(encoding="utf-8")
    title, _, headings, _, clean, noisy, *_ = text.splitlines()
    assert title == "## Accuracy with and without the bias towards one class, under gaussian noise"
    # ERM has no recalls, as if an earlier version had evaluated it.
    assert (
        headings == "| γ | constrained (1 seed) accuracy | constrained (1 seed) unbiased | constrained (1 seed) bias |"
    )
    assert clean == "| 0 | 0.800 | 0.799 | +0.00 |".replace("0.799", f"{detection(0.8, 100, 0.8, 100).unbiased:.3f}")
    assert noisy.startswith("| 2 | 0.550 | 0.")
    assert "<h3>Bias towards one class</h3>" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
