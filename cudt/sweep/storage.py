"""Where trials are stored: an SQLite file for one machine, PostgreSQL for any number."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from sqlalchemy import URL, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

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
        options = {"pool_pre_ping": True, "connect_args": {"timeout": 60} if is_sqlite else _SERVER}
        storage = _connected(parsed.render_as_string(hide_password=False), options, heartbeat)
    except Exception as error:  # SQLAlchemy and the drivers raise many types
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"cannot open storage {without_password(url)}: {reason}") from error
    if is_sqlite:
        _lock_at_begin(storage.engine)
    return storage


def _connected(url: str, options: dict[str, Any], heartbeat: int) -> RDBStorage:
    for is_last in (False, False, True):
        try:
            return RDBStorage(
                url,
                options,
                heartbeat_interval=heartbeat,
                grace_period=MISSED * heartbeat,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(MOST_DEATHS - 1),
            )
        except (IntegrityError, ProgrammingError):
            # Of several processes that create the tables at the same moment, one succeeds.
            if is_last:
                raise
            time.sleep(1)
    raise AssertionError


def _lock_at_begin(engine: Any) -> None:
    """Let every transaction of an SQLite file begin with the write lock: it has no row locks, and
    two workers could start one trial.
    """

    @event.listens_for(engine, "connect")
    def _no_own_begin(connection: Any, record: Any) -> None:
        # The driver would begin transactions itself, and late.
        connection.isolation_level = None

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


def exists(url: str) -> bool:
    """Whether a storage can have trials: an SQLite file may not exist yet."""
    try:
        parsed = make_url(url)
    except SQLAlchemyError as error:
        raise UserError(f"--storage: {error}") from None
    return parsed.get_backend_name() != "sqlite" or Path(parsed.database or "").is_file()


def sweeps_in(url: str) -> dict[str, Sweep]:
    """The sweeps of a storage by the names of their first studies; creates no file."""
    if not exists(url):
        return {}
    return {
        one.study_name: from_texts(one.user_attrs["sweep"])
        for one in optuna.get_all_study_summaries(open_storage(url))
        if "sweep" in one.user_attrs
    }
