"""A PostgreSQL server of one's own on 127.0.0.1, which leaves nothing behind."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port


class Postgres:
    """A server with an empty data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._programs, self._port = folder, _programs(), free_port()
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root.
            names = {entry.pw_name for entry in pwd.getpwall()}
            user = "postgres" if "postgres" in names else "nobody"
            shutil.chown(folder, user)
            self._account = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        self._run("initdb", "-U", "cudt", "-A", "trust", "-E", "UTF8", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql://cudt@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start the server on its port, and return when it accepts connections."""
        settings = f"-p {self._port} -h 127.0.0.1 -k '' -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-l", str(self._folder / "log"), "-o", settings)

    def crash(self) -> None:
        """End the server as a crash does; its data stays."""
        self._run("pg_ctl", "stop", "-m", "immediate")

    def _run(self, program: str, *words: str) -> None:
        command = [str(self._programs / program), "-D", str(self._folder / "data"), *words]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder, **self._account
        )


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
