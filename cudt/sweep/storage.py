"""Where a sweep's trials are kept: SQLite in its own folder, or wherever an Optuna storage URL says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from sqlalchemy import URL, create_engine, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from cudt.utils.errors import UserError

#: Seconds to wait for whoever else writes into the same SQLite file, as a viewer of studies might.
_PATIENCE = 60

optuna.logging.set_verbosity(optuna.logging.WARNING)


def own_storage(folder: Path) -> str:
    """The URL of the SQLite file in a sweep's folder, whatever characters are in its name."""
    return URL.create("sqlite", database=str((folder / "study.db").resolve())).render_as_string()


def open_storage(url: str | None) -> BaseStorage:
    """Where the studies are; None for this process's memory."""
    if url is None:
        return InMemoryStorage()
    try:
        patience = {"connect_args": {"timeout": _PATIENCE}} if _file_of(url) is not None else {"pool_pre_ping": True}
        return RDBStorage(url, engine_kwargs=patience)
    except Exception as error:  # SQLAlchemy and the drivers raise many kinds
        raise _refused(url, error) from None


def is_there(url: str) -> bool:
    """Whether a storage has studies in it; makes nothing."""
    try:
        file = _file_of(url)
        if file is not None and not file.is_file():
            return False
        engine = create_engine(url)
        try:
            return inspect(engine).has_table("studies")
        finally:
            engine.dispose()
    except Exception as error:
        raise _refused(url, error) from None


@contextmanager
def told() -> Iterator[None]:
    """A storage that fails while a sweep goes on is told in a line: a full disk, a server that is gone."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ or error
        raise UserError(
            f"the trials cannot be kept ({_first_line(cause)}); what was done is done, and the same command goes on"
        ) from None


def _file_of(url: str) -> Path | None:
    """The file of a SQLite URL."""
    parsed = make_url(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def _refused(url: str, error: Exception) -> UserError:
    return UserError(f"storage {_without_password(url)}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _without_password(url: str) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except (SQLAlchemyError, ValueError):
        return "(not a URL)"
