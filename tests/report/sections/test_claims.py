from __future__ import annotations

import itertools

import pandas as pd
import pytest

from cudt import report
from tests.report import make_run


def test_the_page_ends_with_the_claims_and_claims_csv_is_written(trained_run, tmp_path):
    for objective, seed in itertools.product(("constrained", "erm"), range(3)):
        losses = (0.6, 0.5, 0.4) if objective == "constrained" else (0.5, 0.6, 0.4)
        curve = {0.0: 0.9, 1.0: 0.5}
        make_run(trained_run, tmp_path / "runs", curve, objective=objective, seed=seed, losses=losses)
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    page = made.page.read_text(encoding="utf-8")
    headings = [part.partition("</h2>")[0].rpartition(">")[2] for part in page.split("<h2")[1:]]
    assert headings[-1] == "The paper's claims".replace("'", "&#39;")
    assert made.claims.startswith("2 supported, ")
    verdicts = (tmp_path / "report" / "tables" / "claims.md").read_text(encoding="utf-8").splitlines()
    (first,) = (line for line in verdicts if line.startswith("| C1 |"))
    assert "| **supported** | – |" in first
    assert "for: layers that lower the test loss at γ\\_train (every seed) 1 (1 to 1); reviews-ut" in first
    (second,) = (line for line in verdicts if line.startswith("| C1 compared |"))
    assert "| **supported** | not tested |" in second
    assert "1 against 0.6667, +0.333 (+0.333 to +0.333)" in second
    (fourth,) = (line for line in verdicts if line.startswith("| C4 |"))
    assert "no runs; to test it: cudt experiment ucsd-dust-cpu" in fourth
    table = pd.read_csv(tmp_path / "report" / "claims.csv")
    assert table[table["claim"] == "C1 compared"]["effect"].tolist() == pytest.approx([1 / 3])
