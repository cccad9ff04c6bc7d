"""Where a sweep's trials are stored: SQLite in its own folder, or the database of a URL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage
from sqlalchemy import URL, create_engine, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from cudt.sweep.database import PATIENCE, first_line
from cudt.sweep.shared import SharedStorage
from cudt.utils.errors import MachineFaultError, UserError

#: Seconds to wait for another process that writes into the same SQLite file.
_TIMEOUT = 60
#: How soon a connection to PostgreSQL that gives no answer (a lost network, a host that is off) is
#: an error: seconds to connect, milliseconds for sent data, seconds for a silent server.
_TIMEOUTS = {
    "connect_timeout": 10,
    "tcp_user_timeout": 20_000,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
#: The options of PostgreSQL's URLs that are passwords.
_SECRET = ("password", "sslpassword")
#: How often tables may appear that this process is creating.
_ATTEMPTS = 3

# Optuna would log every trial that fails.
optuna.logging.set_verbosity(optuna.logging.ERROR)


def own_storage(folder: Path) -> str:
    """The URL of the SQLite file in a sweep's folder, whatever characters the folder's name
    contains.
    """
    return URL.create("sqlite", database=str((folder / "study.db").resolve())).render_as_string()


def open_storage(url: str | None) -> BaseStorage:
    """The storage of a URL; None is this process's memory."""
    if url is None:
        return InMemoryStorage()
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return SharedStorage(_with_driver(url), _engine_options(url))
        except Exception as error:  # SQLAlchemy and the drivers raise many types
            # Of several workers that create the tables of an empty database at the same moment, all
            # but one fail.
            if not attempts_left or not isinstance(error, IntegrityError | ProgrammingError):
                raise _refusal(url, error) from None
            time.sleep(1)
    raise AssertionError


def open_patiently(url: str) -> BaseStorage:
    """The storage of a URL that another process has opened before; a server that is restarting is
    waited for.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return open_storage(url)
        except UserError:
            if time.monotonic() > end:
                raise
            time.sleep(2.0)


def without_password(url: str) -> str:
    """A URL that can be printed and written to files; the password comes from ~/.pgpass or
    CUDT_STORAGE.
    """
    try:
        # Not `set(password=None)`, which leaves the password as it is.
        bare = _parsed(url)._replace(password=None)
    except (SQLAlchemyError, ValueError):
        return "(not a valid URL)"
    return bare.difference_update_query(_SECRET).render_as_string(hide_password=False)


def _parsed(url: str) -> URL:
    parsed = make_url(url)
    if "@" in (parsed.host or ""):
        # SQLAlchemy ends a password at its first @, and the rest would be printed as the host's
        # name.
        raise ValueError("write an @ in a password as %40")
    return parsed


def _with_driver(url: str) -> str:
    """A URL with the driver that `pip install cudt[postgres]` brings, unless it names one."""
    parsed = _parsed(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


def _engine_options(url: str) -> dict[str, Any]:
    if _file_of(url) is not None:
        return {"connect_args": {"timeout": _TIMEOUT}}
    # A worker and its heartbeat use a connection each, and pools of a thousand workers must not
    # exhaust the server.
    return {
        "pool_pre_ping": True,
        "pool_size": 1,
        "max_overflow": 2,
        "connect_args": dict(_TIMEOUTS),
    }


def has_studies(url: str) -> bool:
    """Whether a storage exists and contains studies; creates nothing."""
    try:
        file = _file_of(url)
        if file is not None and not file.is_file():
            return False
        engine = create_engine(_with_driver(url))
        try:
            return inspect(engine).has_table("studies")
        finally:
            engine.dispose()
    except Exception as error:
        raise _refusal(url, error) from None


@contextmanager
def explain_storage_errors() -> Iterator[None]:
    """Turn a storage failure during a sweep (a full disk, a lost server) into a fault of the
    machine.
    """
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        raise MachineFaultError(
            f"cannot write the sweep's trials to its storage: {first_line(error)}; finished "
            "trials are kept, "
            "run the same command to resume once the storage works again"
        ) from None


def _file_of(url: str) -> Path | None:
    """The file of a SQLite URL; None for any other."""
    parsed = _parsed(url)
    return (
        Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None
    )


def _refusal(url: str, error: Exception) -> UserError | MachineFaultError:
    kind = MachineFaultError if isinstance(error, OSError) else UserError
    reason = str(error).strip().splitlines()[0]
    if reason.startswith("invalid literal for int()"):
        # It repeats what it takes for the port, which is a part of a password if the host is
        # missing.
        reason = "the port is not a number; write postgresql://USER@HOST/DATABASE"
    return kind(f"cannot open storage {without_password(url)}: {reason}")
