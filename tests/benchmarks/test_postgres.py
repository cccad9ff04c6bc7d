from __future__ import annotations

import os
import shutil
from pathlib import Path

import psycopg
import pytest

from benchmarks.scale import postgres
from benchmarks.scale.postgres import USER
from benchmarks.speed.bench import SkippedError


def count(url: str) -> int:
    with psycopg.connect(url) as connection:
        return int(connection.execute("select count(*) from numbers").fetchone()[0])  # type: ignore[index]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_ends_every_connection_and_loses_no_commit(postgres_server, postgres_url, mode):
    connection = psycopg.connect(postgres_url, autocommit=True)
    connection.execute("create table numbers (number int)")
    connection.execute("insert into numbers values (1), (2)")
    postgres_server.restart(mode)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    assert count(postgres_url) == 2


def test_every_test_has_a_database_of_its_own(postgres_url):
    with pytest.raises(psycopg.errors.UndefinedTable):
        count(postgres_url)


def test_the_server_asks_for_its_password_and_serves_only_this_machine(postgres_server):
    with pytest.raises(psycopg.OperationalError, match=f'password authentication failed for user "{USER}"'):
        psycopg.connect(postgres_server.url(password="wrong"))
    with psycopg.connect(postgres_server.url()) as connection:
        assert connection.execute("show listen_addresses").fetchone() == ("127.0.0.1",)


def test_nothing_is_left_of_a_server_and_it_does_not_run_as_root(postgres_server):
    with postgres.postgres(max_connections=17) as server:
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("show max_connections").fetchone() == ("17",)
            (folder,) = connection.execute("show data_directory").fetchone()  # type: ignore[misc]
        process = server.process_id
        assert Path(folder).stat().st_uid != 0
    assert not Path(folder).parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_machine_without_postgresql_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SkippedError, match="not installed: apt-get install postgresql"), postgres.postgres():
        pass
