from __future__ import annotations

import subprocess
import sys

import pandas as pd
import pytest

from cudt import report
from cudt.utils.errors import UserError
from tests.report import make_run, plant_constraints, plant_descent, plant_weights

CURVE = {0.0: 0.9, 1.0: 0.6}


def test_a_report_is_tables_figures_and_a_page(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", CURVE)
    make_run(trained_run, tmp_path / "runs", CURVE, objective="erm")
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    assert made.warnings == []
    files = {
        path.relative_to(tmp_path / "report").as_posix()
        for path in (tmp_path / "report").rglob("*.*")
    }
    of_recipe = ("gaussian-descent-and-robustness", "gaussian-layer-ratios", "errors-over-layers")
    names = (*(f"reviews-ut-{name}" for name in of_recipe), "infeasible-runs", "average-descent")
    figures = {f"figures/{name}.{kind}" for name in names for kind in ("png", "pdf")}
    results = ("average-rmse", "accuracy-auc", "accuracy-auc-other")
    settings = ("dual-video", "dual-language", "dual-llama", "dual-other")
    laid_out = {f"tables/{name}.{kind}" for name in (*results, *settings) for kind in ("md", "tex")}
    long = {"tables/dual.csv", *(f"tables/{name}.csv" for name in results)}
    numbers = ("table", "paired", "curves", "layers", "ratio_bins")
    plain = {f"{name}.csv" for name in numbers}
    assert files == {
        "index.html",
        "report.json",
        "tables/missing.txt",
        *plain,
        *laid_out,
        *long,
        *figures,
    }
    table = pd.read_csv(made.table_path, dtype={"variant": str})
    pd.testing.assert_frame_equal(table, made.table, check_dtype=False)


def test_a_report_is_made_from_run_folders_alone(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path / "runs", CURVE)
    tables = ["layers.csv", "ood.csv", "ratio_bins.csv", "ratios.csv"]
    files = sorted(path.name for path in run.path.iterdir() if not path.name.startswith("."))
    assert files == ["checksums.json", *tables, "recipe.yaml", "run.json"]
    assert report.write([tmp_path / "runs"], tmp_path / "report").page.is_file()


def test_a_second_report_removes_the_files_of_the_first_and_nothing_else(trained_run, tmp_path):
    out = tmp_path / "report"
    make_run(trained_run, tmp_path / "a", CURVE, name="first")
    make_run(trained_run, tmp_path / "b", CURVE, name="second")
    report.write([tmp_path / "a"], out)
    drawn = {path for path in (out / "figures").iterdir() if path.name.startswith("first-")}
    assert drawn
    (out / "figures" / "first-mine.png").write_text("drawn by hand")
    (out / "tables" / "notes.md").write_text("written by hand")
    report.write([tmp_path / "b"], out)
    assert {path.name for path in (out / "figures").glob("first-*")} == {"first-mine.png"}
    assert (out / "tables" / "notes.md").is_file()
    fresh = tmp_path / "fresh"
    report.write([tmp_path / "b"], fresh)
    ours, theirs = ({path.relative_to(top) for path in top.rglob("*.*")} for top in (fresh, out))
    assert {path.as_posix() for path in theirs - ours} == {
        "figures/first-mine.png",
        "tables/notes.md",
    }
    assert ours <= theirs


NOTES = {
    "another's": '["a"]',
    "cut off": '{"files": ["tab',
    "files elsewhere": '{"files": ["kept.txt", "tables/../kept.txt", "figures/..", "../kept.txt", "/kept.txt", 3]}',
    "a folder": '{"files": ["tables/folder", "tables/folder/kept.txt"]}',
}


def test_runs_that_were_not_evaluated_are_reported_without_figures(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", feasible=True)
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    assert len(made.table) == 1
    assert "not evaluated yet" in made.page.read_text(encoding="utf-8")
    assert not list((tmp_path / "report").rglob("*.png"))


def test_without_a_finished_run_nothing_is_written(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path / "runs", CURVE, status="failed", reason="loss not finite")
    with pytest.raises(
        UserError, match=r"^no finished run below .*runs; create one with `cudt train`\n  "
    ) as error:
        report.write([tmp_path / "runs"], tmp_path / "report")
    assert f"{run.path}: failed (loss not finite)" in str(error.value)
    assert not (tmp_path / "report").exists()


def test_a_report_does_not_import_torch(trained_run, tmp_path):
    # ERM has another α than the constrained run, so that its losses are judged again.
    for objective, alpha in (("constrained", 0.1), ("erm", 0.3)):
        run = make_run(
            trained_run, tmp_path / "runs", CURVE, objective=objective, rates=[alpha] * 3
        )
        names = ("kept", "best_layer", "best_loss", "gap", "bound", "bound_at_depth")
        plant_descent(run, dict.fromkeys((0.0, 1.0), dict.fromkeys(names, 1.0)))
        plant_constraints(run, {0.0: [0.6, 0.5, 0.4], 1.0: [0.6, 0.6, 0.5]})
        plant_weights(run, [[0.1, 0.2, 0.3]] * 3)
    code = (
        "import sys; from pathlib import Path; from cudt.cli.report import report; "
        "report([Path(sys.argv[1])], None, Path(sys.argv[2])); "
        "print([name for name in ('torch', 'accelerate', 'transformers', 'optuna') if name in "
        "sys.modules])"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "runs"), str(tmp_path / "report")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
