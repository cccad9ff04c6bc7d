"""Where trials are stored: an SQLite file for one machine, PostgreSQL for any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from sqlalchemy import URL, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from cudt.sweep.definition import Sweep, from_texts
from cudt.utils.errors import UserError

#: Seconds between two heartbeats of a trial, and after how many missed ones it is repeated.
HEARTBEAT, MISSED = 20, 6
#: Workers that may die while they run a cell: the cell itself may be what kills them.
MOST_DEATHS = 6
#: What a storage raises that is away, locked or full.
STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError)
#: Heartbeats are stored without a time zone, so all sessions must have the same one; a server that
#: gives no answer is an error after 20 seconds.
_SERVER = {"options": "-c timezone=utc", "connect_timeout": 10, "tcp_user_timeout": 20_000}


def is_of_storage(error: BaseException | None) -> bool:
    """Whether a storage that is away, locked or full has led to an error."""
    # While Optuna handles such an error, it may run into others.
    while error is not None and not isinstance(error, STORAGE_ERRORS):
        error = error.__cause__ or error.__context__
    return error is not None


def own_storage(folder: Path) -> str:
    """The URL of the SQLite file in a sweep's folder."""
    return URL.create("sqlite", database=str((folder / "study.db").resolve())).render_as_string()


def open_storage(url: str, heartbeat: int = HEARTBEAT) -> RDBStorage:
    """The storage of a URL, which records heartbeats and repeats the trials of lost workers."""
    try:
        parsed = make_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        storage = RDBStorage(
            parsed.render_as_string(hide_password=False),
            {"pool_pre_ping": True, "connect_args": {"timeout": 60} if is_sqlite else _SERVER},
            heartbeat_interval=heartbeat,
            grace_period=MISSED * heartbeat,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(MOST_DEATHS - 1),
        )
    except Exception as error:  # SQLAlchemy and the drivers raise many types
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"cannot open storage {without_password(url)}: {reason}") from error
    if is_sqlite:
        _lock_at_begin(storage.engine)
    return storage


def _lock_at_begin(engine: Any) -> None:
    """Let every transaction of an SQLite file begin with the write lock: it has no row locks, and
    two workers could start one trial.
    """

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        # The driver would begin transactions itself, and late.
        connection.isolation_level = None
        # One log that is synced now and then, instead of files synced at every commit.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()


def without_password(url: str) -> str:
    """A URL that can be printed; the password comes from ~/.pgpass or CUDT_STORAGE."""
    try:
        bare = make_url(url)._replace(password=None).difference_update_query(["password"])
    except (SQLAlchemyError, ValueError):
        return "(not a valid URL)"
    return bare.render_as_string(hide_password=False)


def existing(url: str) -> BaseStorage | None:
    """The storage of a URL; None for an SQLite file that does not exist, which is not created."""
    before, _, path = url.partition(":///")
    return open_storage(url) if before != "sqlite" or Path(path).is_file() else None


def sweeps_in(storage: BaseStorage | None) -> dict[str, Sweep]:
    """The sweeps of a storage by the names of their first studies."""
    found = [] if storage is None else optuna.get_all_study_summaries(storage)
    texts = {one.study_name: one.user_attrs.get("sweep") for one in found}
    return {name: from_texts(text) for name, text in texts.items() if text is not None}
