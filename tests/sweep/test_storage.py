from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from cudt.sweep.shared import SharedStorage
from cudt.sweep.storage import (
    explain_storage_errors,
    has_studies,
    open_storage,
    own_storage,
    without_password,
)
from cudt.utils.errors import MachineFaultError, UserError
from tests.sweep.searches import study_of, sweep_of
from tests.sweep.test_queue import Words


@pytest.mark.parametrize(
    ("url", "start"),
    [
        (
            "postgresql://me:secret@nowhere/trials",
            "cannot open storage postgresql://me@nowhere/trials: ",
        ),
        ("oracl://me:secret@nowhere/trials", "cannot open storage oracl://me@nowhere/trials: "),
        (
            "sqlite:////no/such/folder/trials.db",
            "cannot open storage sqlite:////no/such/folder/trials.db: ",
        ),
        ("trials.db", "cannot open storage (not a valid URL): "),
        ("me:secret", "cannot open storage (not a valid URL): "),
        (
            "postgresql://me@nowhere/trials?password=secret",
            "cannot open storage postgresql://me@nowhere/trials: ",
        ),
        (
            "postgresql://me:p@secret@db/trials",
            "cannot open storage (not a valid URL): write an @ in a password as %40",
        ),
    ],
)
def test_a_storage_that_cannot_be_opened_is_reported_without_its_password(url, start):
    with pytest.raises(UserError) as error:
        open_storage(url)
    assert str(error.value).startswith(start)
    assert "secret" not in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_port_that_is_no_number_is_reported_without_the_password():
    with pytest.raises(UserError) as error:
        open_storage("postgresql://me:secret@nowhere:port/trials")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("postgresql://me:secret@db:5432/trials", "postgresql://me@db:5432/trials"),
        ("postgresql://me@db/trials", "postgresql://me@db/trials"),
        (
            "postgresql://db/trials?user=me&password=secret&sslmode=require",
            "postgresql://db/trials?sslmode=require&user=me",
        ),
        ("sqlite:////tmp/trials.db", "sqlite:////tmp/trials.db"),
        ("me:secret", "(not a valid URL)"),
        (
            "postgresql://me@db/trials?password=x&sslmode=require",
            "postgresql://me@db/trials?sslmode=require",
        ),
        (
            "postgresql://db/trials?sslpassword=x&passfile=/me/pass",
            "postgresql://db/trials?passfile=%2Fme%2Fpass",
        ),
    ],
)
def test_what_is_written_to_files_has_no_password(url, printed):
    assert without_password(url) == printed


def test_a_sweeps_own_storage_is_in_its_folder_wherever_we_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert own_storage(Path("out")) == f"sqlite:///{tmp_path}/out/study.db"


def test_looking_whether_a_storage_is_there_makes_nothing(tmp_path):
    url = own_storage(tmp_path)
    assert not has_studies(url)
    assert not list(tmp_path.iterdir())
    (tmp_path / "study.db").touch()
    assert not has_studies(url)
    study_of(sweep_of(tmp_path), open_storage(url))
    assert has_studies(url)


def test_a_storage_that_fails_under_way_is_reported_in_a_line():
    with pytest.raises(MachineFaultError) as error, explain_storage_errors():
        raise OperationalError("INSERT ...", {}, Exception("disk is full\nsee there"))
    assert "disk is full" in str(error.value)
    assert "run the same command to resume" in str(error.value)
    assert "\n" not in str(error.value)


def test_workers_that_start_together_create_the_tables_of_an_empty_database(postgres_url):
    together = threading.Barrier(4)

    def open_together(_: int) -> object:
        together.wait()
        return open_storage(postgres_url).get_all_studies()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(open_together, range(4))) == [[], [], [], []]


def test_sessions_of_all_time_zones_agree_on_who_is_silent(postgres_url, monkeypatch):
    """Heartbeats are stored without a time zone."""
    monkeypatch.setenv("PGTZ", "America/New_York")
    queue = Words(open_storage(postgres_url), "a")
    assert queue.next() is not None
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    other = open_storage(postgres_url)
    assert isinstance(other, SharedStorage)
    assert other.stale(queue.study._study_id) == []
