from __future__ import annotations

from cudt import report
from tests.report import make_run, plant_exits


def test_the_table_has_a_row_for_each_rule_and_level_and_columns_for_each_objective(
    trained_run, tmp_path
):
    for objective in ("constrained", "erm"):
        for seed in range(2):
            run = make_run(
                trained_run, tmp_path / "runs", {0.0: 1.0, 2.0: 0.8}, objective=objective, seed=seed
            )
            plant_exits(run, (0.0, 0.4, 2.0))
    report.write([tmp_path / "runs"], tmp_path / "report")
    text = (tmp_path / "report" / "tables" / "reviews-ut-early-exit.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == "## Early exit under gaussian noise, 3 layers"
    assert lines[2].startswith(
        "| rule | γ | constrained (2 seeds) accuracy | constrained (2 seeds) layers |"
    )
    assert lines[4] == "| confidence | 0.4 |" + 2 * " 0.760 (−10.0) | 2.00 | 60% |"
    assert [line.split(" | ")[:2] for line in lines[4:10]] == [
        [f"| {rule}", level]
        for rule in ("confidence", "entropy", "patience")
        for level in ("0.4", "2")
    ]
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<h3>Early exit</h3>" in page
