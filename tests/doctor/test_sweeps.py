from __future__ import annotations

import json
import shutil
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from cudt.doctor import reports, sweeps
from cudt.report import manifest
from cudt.runs import checksums
from cudt.sweep.holder import new_holder
from cudt.sweep.info import SweepInfo, write_info
from cudt.sweep.storage import open_storage, own_storage
from cudt.utils.process_identity import machine
from tests.doctor.conftest import bad, found, scope


@pytest.fixture
def sweep(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "outputs" / "sweeps" / "alpha-1234"))


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A sweep with a running trial of this process and a waiting one."""
    folder = tmp_path_factory.mktemp("sweep")
    info = {"measure": "metric", "direction": "maximize", "arms": {}, "settings": [], "keys": [], "log_keys": []}
    values = {"name": "alpha", "recipe": "smoke-text", "finished": 0, "failed": 0, "left": 2, **info}
    write_info(folder, SweepInfo.model_validate({**values, "command": "cudt sweep --search alpha"}))
    storage = open_storage(own_storage(folder))
    study = optuna.create_study(storage=storage, study_name="arm")
    with warnings.catch_warnings():
        # Optuna expects its own loop where there are heartbeats.
        warnings.simplefilter("ignore")
        hold(folder, new_holder(), study.ask()._trial_id)
    study.enqueue_trial({})
    assert len(study.get_trials(states=[TrialState.RUNNING])) == 1
    storage.remove_session()
    return folder


def hold(folder: Path, holder: object, trial: int) -> None:
    with sqlite3.connect(folder / "study.db") as database:
        database.execute("DELETE FROM trial_user_attributes")
        database.execute(
            "INSERT INTO trial_user_attributes (trial_id, \"key\", value_json) VALUES (?, 'holder', ?)",
            (trial, json.dumps(holder)),
        )


def test_a_sweep_in_order_and_no_sweep(sweep, tmp_path):
    assert [one.title for one in found(sweeps.CHECK, scope(tmp_path))] == ["1 of 1 sweep in order"]
    assert found(sweeps.CHECK, scope(tmp_path / "gone")) == []


def test_a_trial_of_a_dead_worker_is_a_warning_with_the_command_that_resumes(sweep, tmp_path):
    hold(sweep, {**new_holder(), "process": 2**22 + 1, "start": 1.0}, 1)
    (one,) = bad(sweeps.CHECK, scope(tmp_path))
    assert one.title == f"{sweep}: 1 trial belongs to a worker that is gone"
    assert one.advice == "resume: `cudt sweep --search alpha`"


@pytest.mark.parametrize("holder", [["a"], "a", {"machine": machine()}, {**new_holder(), "process": "x"}])
def test_a_holder_of_another_shape_is_damage_of_this_sweep_alone(sweep, tmp_path, holder):
    shutil.copytree(sweep, sweep.with_name("other"))
    hold(sweep, holder, 1)
    *_, one, summary = found(sweeps.CHECK, scope(tmp_path))
    assert one.title.startswith(f"{sweep / 'study.db'}: damaged (")
    assert summary.title == "1 of 2 sweeps in order"


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "flip"])
def test_a_damaged_database_is_a_problem_and_is_not_deleted(sweep, tmp_path, damage):
    file = sweep / "study.db"
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[100:4096] = bytes(3996)
    file.write_bytes({"cut": content[:5000], "text": b"no database", "empty": b"", "flip": bytes(flipped)}[damage])
    (one,) = bad(sweeps.CHECK, scope(tmp_path))
    assert (one.severity, one.fix) == ("problem", None)
    assert one.title.startswith(f"{file}: damaged (")
    assert file.is_file()


def test_a_query_without_an_end_is_given_up(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "_LONGEST", 0.2)
    with closing(sqlite3.connect(sweep / "study.db")) as database:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS trial_id FROM n"
        database.executescript(
            f"DROP TABLE trials; CREATE VIEW trials AS SELECT *, 'RUNNING' AS state FROM ({endless})"
        )
    (one,) = bad(sweeps.CHECK, scope(tmp_path))
    assert (one.severity, "interrupted" in one.title) == ("problem", True)


def test_a_database_in_use_is_in_order(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "_PATIENCE", 0.1)
    with sqlite3.connect(sweep / "study.db") as database:
        database.execute("BEGIN EXCLUSIVE")
        assert bad(sweeps.CHECK, scope(tmp_path)) == []


@pytest.mark.parametrize("has_checksums", [True, False])
def test_a_damaged_sweep_json_is_a_problem_and_a_missing_one_is_not_written_yet(sweep, tmp_path, has_checksums):
    if not has_checksums:
        checksums.forget(sweep, "sweep.json")
    (sweep / "sweep.json").write_text("{")
    (one,) = bad(sweeps.CHECK, scope(tmp_path))
    assert (one.severity, "sweep.json: damaged" in one.title) == ("problem", True)
    checksums.forget(sweep, "sweep.json")
    (sweep / "sweep.json").unlink()
    assert bad(sweeps.CHECK, scope(tmp_path)) == []


def test_a_report_that_lost_a_file_is_a_warning(tmp_path):
    files = [tmp_path / "report" / "figures" / name for name in ("one.png", "two.png")]
    files[0].parent.mkdir(parents=True)
    for file in files:
        file.write_bytes(b"")
    manifest.replace(tmp_path / "report", files)
    assert bad(reports.CHECK, scope(tmp_path)) == []
    files[1].unlink()
    (one,) = bad(reports.CHECK, scope(tmp_path))
    assert "1 file of the report is missing: figures/two.png" in one.title
