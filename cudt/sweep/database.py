"""What an SQLite file and a server need when many processes use them, and what their errors
mean.
"""

from __future__ import annotations

from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError

#: Seconds for which a call waits for a server that is away.
PATIENCE = 300.0


def is_server(storage: BaseStorage) -> bool:
    """Whether a storage may have a thousand workers, so that everything small adds up."""
    return isinstance(storage, RDBStorage) and storage.engine.name != "sqlite"


def prepare(engine: Any) -> None:
    """Let the sessions of an engine agree on the time, and on who writes."""
    if engine.name == "sqlite":
        _lock_at_begin(engine)
    else:
        _count_in_utc(engine)


def is_away(error: Exception) -> bool:
    """Whether an error says that the server, or the lock of an SQLite file, may be available
    later.
    """
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if isinstance(cause, DBAPIError) and "sqlite3" in type(cause.orig).__module__:
        return "locked" in str(cause.orig)
    # Optuna tries a failed query in another way first, in the transaction that has lost its
    # connection.
    is_lost = isinstance(cause, OperationalError | InterfaceError | PendingRollbackError)
    return is_lost or getattr(cause, "connection_invalidated", False)


def first_line(error: BaseException) -> str:
    """What a driver says is wrong."""
    return str(error.__cause__ or error).strip().split("\n")[0]


def _count_in_utc(engine: Any) -> None:
    """Let every session of a server have UTC.

    Heartbeats are stored without a time zone: those of sessions in two time zones, or before and
    after the change to summer time, could not be compared.
    """

    @event.listens_for(engine, "connect")
    def _set_zone(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("SET TIME ZONE 'UTC'")
        cursor.close()
        connection.commit()

    engine.dispose()


def _lock_at_begin(engine: Any) -> None:
    """Let every transaction of an SQLite file begin with the write lock.

    Optuna reads a trial's state and then sets it; SQLite has no row locks, and two workers could
    start one trial.
    """

    @event.listens_for(engine, "connect")
    def _no_own_begin(connection: Any, record: Any) -> None:
        # The driver would begin transactions itself, and late.
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()
