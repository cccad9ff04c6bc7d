"""A PostgreSQL server of one's own on 127.0.0.1, which leaves nothing behind."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port

#: A commit is in the log before it is confirmed, so that no crash of the server loses one.
_SETTINGS = ("fsync=off", "unix_socket_directories=", "listen_addresses=127.0.0.1")


class Postgres:
    """A server with an empty data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._programs, self._port = folder, _programs(), free_port()
        # PostgreSQL refuses to run as root.
        names = {entry.pw_name for entry in pwd.getpwall()}
        account = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        self._account: dict[str, Any] = {"cwd": folder}
        if os.geteuid() == 0:
            shutil.chown(folder, account.pw_name)
            own = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            self._account |= own
        words = ["-D", str(folder / "data"), "-U", "cudt", "-A", "trust", "-E", "UTF8", "--no-sync"]
        command = [str(self._programs / "initdb"), *words]
        subprocess.run(command, check=True, capture_output=True, **self._account)

    @property
    def url(self) -> str:
        return f"postgresql://cudt@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start the server on its port, and return when it accepts connections."""
        settings = [word for one in _SETTINGS for word in ("-c", one)]
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-p", str(self._port), *settings],
                stdout=log,
                stderr=log,
                **self._account,
            )
        ready = [str(self._programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self._port), "-q"]
        end = time.monotonic() + 60
        while subprocess.run(ready).returncode != 0:
            assert self._process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)

    def crash(self) -> None:
        """End the server as a crash does; its data stays."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server; skips the test where PostgreSQL is not installed."""
    folder = Path(tempfile.mkdtemp(prefix="cudt-postgres-"))
    try:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.crash()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    """The folder of PostgreSQL's programs; Debian keeps them off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if (on_path := shutil.which("initdb")) is not None:
        found.append(Path(on_path).resolve())
    if not found:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return found[-1].parent
