from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cudt.evaluation.tables import area_under_curve
from cudt.runs.info import RunInfo
from tests.cli.conftest import modules_imported_by
from tests.planted import make_run

CURVE = {0.0: 0.9, 0.4: 0.8, 1.0: 0.6, 2.0: 0.5}


@pytest.fixture
def outputs(call, trained_run) -> Path:
    """Two evaluated runs of different α, an unevaluated one of another seed, and one that
    failed."""
    out = Path("outputs/reviews-ut")
    make_run(trained_run, out, CURVE, overrides=["descent.alpha=0.2"], feasible=True, monotone=True)
    make_run(trained_run, out, {0.0: 0.7}, objective="erm", feasible=False, monotone=False)
    make_run(trained_run, out, None, objective="erm", seed=1, feasible=False, monotone=True)
    make_run(trained_run, out, None, seed=2).update_info(
        RunInfo(status="failed", reason="the loss is not finite")
    )
    return out


def rows(call, *arguments: str | Path) -> list[dict[str, str]]:
    code, output, error = call("runs", *arguments, "--csv")
    assert (code, error) == (0, "")
    return list(csv.DictReader(output.splitlines()))


def test_every_run_is_one_row_with_its_scores_and_verdict(call, outputs, trained_run):
    found = {(row["objective"], row["seed"]): row for row in rows(call)}
    assert len(found) == 4
    best = found["constrained", "0"]
    assert (best["recipe"], best["model"], best["status"]) == ("reviews-ut", "unrolled", "finished")
    assert (best["feasible"], best["monotone"], best["metric"]) == ("True", "True", "accuracy")
    validation = trained_run.read_table("layers").query("split == 'validation'")
    assert float(best["score"]) == validation["metric"].iloc[-1]
    # γ_train is 0.4: the mean of the two higher levels.
    assert float(best["ood"]) == pytest.approx(0.55)
    assert float(best["auc"]) == pytest.approx(area_under_curve([*CURVE], [*CURVE.values()]))
    # One level gives no area, and no level above γ_train no mean.
    assert (found["erm", "0"]["auc"], found["erm", "0"]["ood"]) == ("", "")
    assert found["constrained", "2"]["status"] == "failed"


def test_runs_are_named_by_the_settings_that_differ(call, outputs):
    assert {(row["objective"], row["seed"]): row["variant"] for row in rows(call)} == {
        ("constrained", "0"): "α=0.2",
        # Settings of the constraints change nothing for ERM.
        ("erm", "0"): "",
        ("erm", "1"): "",
        ("constrained", "2"): "α=0.1",
    }


def test_the_table_fits_a_narrow_terminal(call, outputs):
    code, output, error = call("runs", "outputs")
    assert (code, error) == (0, "")
    lines = output.splitlines()
    assert lines[0] == "reviews-ut: unrolled, score is accuracy"
    assert lines[1].split() == [
        "run",
        "variant",
        "seed",
        "status",
        "score",
        "OOD",
        "verdict",
        "age",
    ]
    assert [line.split()[0] for line in lines[2:6]] == sorted(
        path.name for path in outputs.iterdir()
    )
    assert {line.split()[-3] for line in lines[2:6] if " finished " in line} == {
        "both",
        "neither",
        "monotone",
    }
    assert lines[-1] == "4 runs"
    assert max(map(len, lines)) <= 80


def test_a_folder_that_cannot_be_read_is_a_warning(call, outputs):
    damaged, unfinished = outputs / "erm-damaged", outputs / "erm-unfinished"
    damaged.mkdir()
    (damaged / "recipe.yaml").write_text("name: x\n")
    (damaged / "run.json").write_text("{")
    unfinished.mkdir()
    (unfinished / "run.json").write_text("{}")
    code, output, error = call("runs")
    assert code == 0
    assert output.splitlines()[-1] == "4 runs"
    lines = error.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"warning: {damaged}/run.json: ")
    assert lines[1].startswith("warning: ")
    assert str(unfinished) in lines[1]


def test_runs_are_listed_without_importing_torch(trained_run, tmp_path):
    loaded = modules_imported_by("runs", str(trained_run.path), cwd=tmp_path)
    assert "pandas" in loaded
    assert not loaded & {"torch", "transformers", "matplotlib", "optuna"}


def test_a_folder_without_runs_has_none(call, tmp_path):
    (tmp_path / "outputs").mkdir()
    assert call("runs") == (0, "no runs\n", "")
