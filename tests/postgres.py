"""A PostgreSQL server of one's own on 127.0.0.1, which leaves nothing behind.

with postgres() as server:
    storage = RDBStorage(server.new_database())
    server.restart()
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "cudt", "open-sesame"
#: Seconds until a server that does not start or stop is an error.
_TIMEOUT = 60
#: How the server ends: `fast` closes the connections and writes a checkpoint, `immediate` is a
#: crash with recovery.
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# A commit is in the log before it is confirmed (synchronous_commit, the default), so that no crash
# of the server loses one. Only a crash of the machine would, because of fsync.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}


class Postgres:
    """A server with an empty data folder; `postgres` starts it and deletes it."""

    def __init__(self, folder: Path) -> None:
        self._binaries, self._folder = _binaries(), folder
        self._databases = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        (folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (folder, folder / "password"):
                shutil.chown(path, _account())
        access = [
            "--username",
            USER,
            "--auth",
            "scram-sha-256",
            "--pwfile",
            str(folder / "password"),
        ]
        self._run(
            "initdb",
            "--pgdata",
            str(folder / "data"),
            *access,
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )

    def url(self, database: str = "postgres", *, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._databases += 1
        name = f"database{self._databases}"
        self._run("createdb", "--maintenance-db", self.url(), name)
        return self.url(name)

    def start(self) -> None:
        """Start the server on its port, and return when it accepts connections."""
        settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
        command = [
            str(self._binaries / "postgres"),
            "-D",
            str(self._folder / "data"),
            "-p",
            str(self.port),
            *settings,
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = process = subprocess.Popen(
                command, stdout=log, stderr=log, **self._account_options()
            )
        end = time.monotonic() + _TIMEOUT
        while not self._answers():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(
                    f"PostgreSQL does not start:\n{(self._folder / 'log').read_text()}"
                )
            time.sleep(0.05)

    def stop(self, mode: str = "fast") -> None:
        """End the server as `fast` or `immediate` says; its data stays."""
        if self._process is not None:
            self._process.send_signal(_SIGNALS[mode])
            try:
                self._process.wait(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def restart(self, mode: str = "fast", *, away: float = 0.0) -> None:
        """Stop and start; no connection survives, and for `away` seconds nobody can connect."""
        self.stop(mode)
        time.sleep(away)
        self.start()

    def _answers(self) -> bool:
        words = ["--host=127.0.0.1", f"--port={self.port}", "--timeout=1", "--quiet"]
        return subprocess.run([self._binaries / "pg_isready", *words], check=False).returncode == 0

    def _run(self, program: str, *words: str) -> None:
        command = [str(self._binaries / program), *words]
        done = subprocess.run(command, capture_output=True, text=True, **self._account_options())
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _account_options(self) -> dict[str, Any]:
        # The current folder may be closed to that account.
        options: dict[str, Any] = {"cwd": self._folder}
        if os.geteuid() == 0:
            options |= {
                "user": _account(),
                "group": pwd.getpwnam(_account()).pw_gid,
                "extra_groups": [],
            }
        return options


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server; skips the test where PostgreSQL is not installed."""
    folder = Path(tempfile.mkdtemp(prefix="cudt-postgres-"))
    try:
        server = Postgres(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path:
    """The folder of PostgreSQL's programs; Debian keeps them off the path, in a folder for each
    version."""
    found = shutil.which("postgres")
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name)
    )
    if found is not None:
        folders.append(Path(found).resolve().parent)
    for folder in reversed(folders):
        if all(
            (folder / name).is_file() for name in ("postgres", "initdb", "createdb", "pg_isready")
        ):
            return folder
    pytest.skip("PostgreSQL is not installed: apt-get install postgresql")


def _account() -> str:
    """An account other than root, as which PostgreSQL refuses to run."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
