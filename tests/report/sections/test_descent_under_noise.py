from __future__ import annotations

from cudt import report
from cudt.report.sections import descent_under_noise
from tests.report import make_run, plant_descent


def numbers(kept: float, best: float, loss: float) -> dict[str, float]:
    return {"kept": kept, "best_layer": best, "best_loss": loss, "gap": 0.1}


def test_the_table_has_a_row_for_each_level_and_columns_for_each_objective(trained_run, tmp_path):
    for objective in ("constrained", "erm"):
        for seed in range(2):
            run = make_run(
                trained_run,
                tmp_path / "runs",
                {0.0: 1.0, 1.0: 0.8},
                objective=objective,
                seed=seed,
                feasible=True,
            )
            plant_descent(run, {0.0: numbers(3, 3, 0.2), 1.0: numbers(seed, 1 + seed, 0.5 + seed)})
    # A level that only one of them has is no row.
    plant_descent(run, {2.0: numbers(0, 1, 1.0)})
    report.write([tmp_path / "runs"], tmp_path / "report")
    tables = tmp_path / "report" / "tables"
    kept = (tables / "reviews-ut-constraints-kept.md").read_text(encoding="utf-8").splitlines()
    assert (
        kept[0] == "## Constraints kept, and the layer with the lowest loss, under gaussian noise"
    )
    assert kept[2].startswith(
        "| γ | constrained (2 seeds) kept | constrained (2 seeds) best layer | erm (2 seeds) kept |"
    )
    assert kept[4:6] == [
        "| 0 | 3 of 3 | 3 | 3 of 3 | 3 |",
        "| 1 | 0.5 of 3 | 1–2 | 0.5 of 3 | 1–2 |",
    ]
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<h3>Descent under noise</h3>" in page


def test_runs_without_a_summary_of_their_constraints_have_no_section(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", {0.0: 1.0, 1.0: 0.8})
    report.write([tmp_path / "runs"], tmp_path / "report")
    assert descent_under_noise.SECTION.title not in (tmp_path / "report" / "index.html").read_text(
        encoding="utf-8"
    )
