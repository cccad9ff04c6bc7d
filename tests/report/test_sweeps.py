from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cudt import report
from cudt.report import sweeps
from cudt.report.figures import Drawing
from cudt.report.sweeps import ReadSweep
from cudt.runs.checksums import write_checked
from cudt.sweep import results
from cudt.sweep.run_sweep import open_studies
from tests.report import make_run
from tests.sweep.planted import result
from tests.sweep.searches import drawn, fail, finish, grid, seeds, sweep_of

RATES = {"low": 1e-3, "high": 1e-1, "log": True}


def write_sweep(folder: Path, **changes) -> Path:
    """A sweep's folder: every trial scores its number, the second of each arm fails."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep = sweep_of(folder, **changes)
    studies = open_studies(sweep, None)
    for study in studies:
        while trial := study.next():
            spent = {"run": f"reviews-ut/{study.arm}-{trial.number}", "seconds": 1.0, "deaths": 0}
            if trial.number == 1:
                fail(study, trial, "<script>alert(1)</script> was too steep", spent)
            else:
                finish(
                    study, trial, trial.number / 10, {**result(trial.number / 10).facts, **spent}
                )
    path = sweep.folder(folder)
    results.write(sweep, studies, path, "cudt sweep")
    return path


def searched(tmp_path: Path, **changes) -> ReadSweep:
    write_sweep(tmp_path, **changes)
    (found,), warnings = sweeps.collect([tmp_path])
    assert not warnings
    return found


@pytest.fixture
def both_arms() -> dict[str, object]:
    wide = {"descent.alpha": {"low": 0.05, "high": 0.4}, "descent.dual.learning_rate": RATES}
    return {"constrained": drawn("tpe", 5, wide), "erm": seeds(5, fixed={"objective": "erm"})}


def axes_of(monkeypatch) -> list[Any]:
    """The axes of the figures that are saved from now on."""
    saved: list[Any] = []

    def keep(drawing: Drawing, *rest: Any, **options: Any) -> str:
        saved.extend(drawing.figure.axes)
        return drawing.title

    monkeypatch.setattr(sweeps, "save", keep)
    return saved


def test_a_slice_for_each_searched_setting_has_each_arms_trials_where_they_are(
    tmp_path, both_arms, monkeypatch
):
    sweep = searched(tmp_path, arms=both_arms)
    saved = axes_of(monkeypatch)
    sweeps.slices(sweep, tmp_path)
    shown = [axes for axes in saved if axes.axison]
    assert [axes.get_xlabel() for axes in shown] == [
        "descent.alpha",
        "descent.dual.learning_rate",
        "seed",
    ]
    alpha, rate, seed = shown
    constrained = sweep.finished[sweep.finished["arm"] == "constrained"]
    points, best = (part.get_offsets() for part in alpha.collections)
    assert sorted(points[:, 0]) == pytest.approx(sorted(constrained["descent.alpha"]))
    assert best[0, 1] == constrained["score"].max() == 0.4
    assert (alpha.get_xscale(), rate.get_xscale()) == ("linear", "log")
    assert len(seed.collections[0].get_offsets()) == 4


def test_parallel_coordinates_have_a_line_for_each_trial_from_0_to_1(
    tmp_path, both_arms, monkeypatch
):
    sweep = searched(tmp_path, arms=both_arms)
    saved = axes_of(monkeypatch)
    sweeps.parallel_coordinates(sweep, tmp_path)
    (axes,) = saved
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["descent.alpha", "descent.dual.learning_rate", "score"]
    lines = [line.get_ydata() for line in axes.lines if len(line.get_xdata()) == 3]
    assert len(lines) == 4
    assert all(min(line) >= 0 and max(line) <= 1 for line in lines)
    assert max(line[-1] for line in lines) == 1


def test_the_page_has_the_best_of_each_arm_what_it_spent_and_what_failed(
    trained_run, tmp_path, both_arms
):
    make_run(trained_run, tmp_path / "runs", {0.0: 0.9, 1.0: 0.5})
    write_sweep(tmp_path / "searched", arms=both_arms, settings={"noise.gamma_train": [0.0, 0.8]})
    made = report.write([tmp_path], tmp_path / "report")
    page = made.page.read_text()
    assert "<h2>Sweep: reviews-ut, mine</h2>" in page
    assert "16 of 20 runs finished, 4 failed." in page
    for cell in ("noise.gamma_train=0.8", "0.4000", "constrained", "reviews-ut/erm-4"):
        assert f"<td>{cell}</td>" in page
    assert "trial 1: &lt;script&gt;alert(1)&lt;/script&gt; was too steep" in page
    assert "<script>alert" not in page
    assert page.count("mine: each setting against the score") == 2


def test_a_sweep_that_is_damaged_is_named_and_the_rest_of_the_report_is_made(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", {0.0: 0.9})
    for number, spoil in enumerate((_cut, _junk, _lacks_a_column, _lacks_a_key)):
        spoil(
            write_sweep(
                tmp_path / f"searched-{number}", arms={"constrained": grid({"seed": [0, 1, 2]})}
            )
        )
    made = report.write([tmp_path], tmp_path / "report")
    assert len(made.warnings) == 4
    assert all("mine-" in line and "damaged" in line for line in made.warnings)


def _cut(path: Path) -> None:
    (path / "trials_wide.csv").write_text("")


def _junk(path: Path) -> None:
    (path / "sweep.json").write_text('{"name": ')


def _lacks_a_column(path: Path) -> None:
    pd.read_csv(path / "trials_wide.csv").drop(columns="seed").to_csv(
        path / "trials_wide.csv", index=False
    )


def _lacks_a_key(path: Path) -> None:
    facts = json.loads((path / "sweep.json").read_text())
    del facts["direction"]
    (path / "sweep.json").write_text(json.dumps(facts))


def test_a_sweep_without_a_finished_trial_is_no_section(tmp_path):
    path = write_sweep(tmp_path, arms={"constrained": grid({"seed": [0, 1]})})
    table = pd.read_csv(path / "trials_wide.csv")
    write_checked(
        path, "trials_wide.csv", table.assign(state="failed").to_csv(index=False).encode()
    )
    assert sweeps.collect([tmp_path]) == (
        [],
        [f"{path}: skipped: the sweep has no finished run yet"],
    )
