from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cudt import report
from cudt.evaluation.intervals import wilson
from cudt.evaluation.judged import judge_name
from cudt.runs import checksums
from cudt.runs.run import Run
from cudt.runs.tables import TABLES
from tests.report import make_run

CURVE = {0.0: 1.0, 2.0: 0.8}


def plant(run: Run, likelihoods: Sequence[float], judge: str = "reviews-ut/erm-elsewhere", gamma: float = 1.5) -> None:
    """Judged completions of instructions 1, 2, …; nan is an empty one."""
    rows = [
        (
            "ask",
            gamma,
            0,
            8,
            number,
            f"{number:08x}",
            "0",
            judge,
            *((0, one, one) if math.isnan(one) else (6, one, 0.2)),
        )
        for number, one in enumerate(likelihoods, 1)
    ]
    run.merge_table("judged", pd.DataFrame(rows, columns=TABLES["judged"]), ["gamma", "judge"])


def rows_of(out: Path) -> list[list[str]]:
    lines = (out / "tables" / "judged.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| reviews")]


@pytest.fixture
def runs(trained_run, tmp_path) -> dict[tuple[str, int], Run]:
    made = {
        (objective, seed): make_run(trained_run, tmp_path / "runs", CURVE, objective=objective, seed=seed)
        for objective in ("constrained", "erm")
        for seed in range(3)
    }
    for seed in range(3):
        # Of four instructions, the constrained run wins 2, 3 and 4.
        plant(made["constrained", seed], [-1.0] * (2 + seed) + [-3.0] * (2 - seed))
        plant(made["erm", seed], [-2.0, -2.0, -2.0, -2.0])
    return made


def test_the_table_has_means_over_seeds_and_the_win_rate_with_its_interval(runs, tmp_path):
    report.write([tmp_path / "runs"], tmp_path / "report")
    constrained, erm = rows_of(tmp_path / "report")
    assert constrained[1:5] == ["ask, 8 tokens", "1.5", "constrained", "3"]
    # The means of −2, −1.5 and −1.
    assert constrained[5:9] == ["-1.500", "20.0%", "6.0", "0.0%"]
    rates = np.array([0.5, 0.75, 1.0])
    # 4.303 is Student's quantile for two degrees of freedom; a share is at most 1.
    low = 0.75 - 4.303 * rates.std(ddof=1) / math.sqrt(3)
    assert constrained[9] == f"75.0% ({low:.1%} to 100.0%)"
    assert erm[3:6] == ["erm", "3", "-2.000"]
    assert erm[9] == "–"
    assert "Judged completions" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "report" / "tables" / "judged.tex").is_file()


def test_one_seed_has_the_interval_over_instructions_and_empty_completions_lose(trained_run, tmp_path):
    ours, erm = (make_run(trained_run, tmp_path / "runs", CURVE, objective=one) for one in ("constrained", "erm"))
    plant(ours, [-1.0, math.nan, -2.0])
    plant(erm, [-2.0, -2.0, math.nan])
    report.write([tmp_path / "runs"], tmp_path / "report")
    constrained, _ = rows_of(tmp_path / "report")
    low, high = wilson(2 / 3, 3)
    assert constrained[5:] == ["-1.500", "20.0%", "4.0", "33.3%", f"66.7% ({low:.1%} to {high:.1%})"]


def test_a_pair_with_the_judge_is_marked_and_the_main_judge_counts(runs, tmp_path):
    judge = judge_name(runs["erm", 1])
    for run in runs.values():
        (run.path / "judged.csv").unlink()
        checksums.forget(run.path, "judged.csv")
        plant(run, [-1.0, -1.0], judge=judge)
    plant(runs["erm", 0], [-9.0], judge="reviews-ut/aaa")
    report.write([tmp_path / "runs"], tmp_path / "report")
    constrained, _ = rows_of(tmp_path / "report")
    assert constrained[9] == "50.0%† (50.0% to 50.0%)"
    text = (tmp_path / "report" / "tables" / "judged.md").read_text(encoding="utf-8")
    assert "One of the runs is the judge itself" in text
    assert f"judged by {judge}" in text.replace("\\", "")


def test_without_an_erm_run_of_the_same_seed_there_is_no_win_rate(trained_run, tmp_path):
    plant(make_run(trained_run, tmp_path / "runs", CURVE, seed=0), [-1.0])
    plant(make_run(trained_run, tmp_path / "runs", CURVE, objective="erm", seed=1), [-1.0])
    report.write([tmp_path / "runs"], tmp_path / "report")
    assert [row[9] for row in rows_of(tmp_path / "report")] == ["–", "–"]


def test_without_judged_csv_there_is_no_table(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", CURVE)
    report.write([tmp_path / "runs"], tmp_path / "report")
    assert not (tmp_path / "report" / "tables" / "judged.md").exists()
