from __future__ import annotations

from cudt import report
from tests.report import make_run, plant_weights

CURVE = {0.0: 0.9, 1.0: 0.6}


def test_a_row_for_each_layer_with_multipliers_weights_and_negative_shares(trained_run, tmp_path):
    for seed in range(2):
        multipliers = {"best": [1.0, 2.0, 0.0], "last": [1.0 + seed, 0.0, 0.5]}
        run = make_run(
            trained_run,
            tmp_path / "runs",
            CURVE,
            seed=seed,
            best={"epoch": 1},
            multipliers=multipliers,
        )
        plant_weights(
            run, [(0.1, 0.2, 1.0), (-0.2, 0.3, 1.1), (0.2, -0.1, 1.2), (0.4 + seed, -0.1, 1.5)]
        )
    report.write([tmp_path / "runs"], tmp_path / "report")
    lines = (
        (tmp_path / "report" / "tables" / "reviews-ut-effective-weights.md")
        .read_text("utf-8")
        .splitlines()
    )
    assert lines[0] == "## Multipliers and effective weights, constrained, 2 seeds"
    assert lines[2] == "| layer | λ best | λ last | w evaluated | w last | negative |"
    assert lines[4:7] == [
        "| 1 | 1.0000 | 1.5000 | **-0.8000** | 1.5000 | 25% |",
        "| 2 | 2.0000 | 0.0000 | 2.0000 | **-0.4500** | 50% |",
        "| 3 | 0.0000 | 0.5000 | 1.0000 | 1.5000 | 0% |",
    ]
    page = (tmp_path / "report" / "index.html").read_text("utf-8")
    assert "some layer has a negative weight: 75% (seed 0), 75% (seed 1)" in page


def test_runs_without_logged_weights_have_no_section(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", CURVE)
    report.write([tmp_path / "runs"], tmp_path / "report")
    assert not (tmp_path / "report" / "tables" / "reviews-ut-effective-weights.md").exists()
