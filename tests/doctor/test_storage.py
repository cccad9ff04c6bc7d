from __future__ import annotations

import socket
import time

from cudt.doctor import storage
from cudt.utils.errors import MachineFaultError
from tests.doctor.conftest import found, scope


def asked(monkeypatch, url: str) -> tuple[str, str]:
    monkeypatch.setenv("CUDT_STORAGE", url)
    (one,) = found(storage.CHECK, scope())
    assert "secret" not in f"{one.title} {one.advice}"
    return one.severity, one.title


def test_without_a_url_sweeps_have_their_own_files(monkeypatch):
    monkeypatch.delenv("CUDT_STORAGE", raising=False)
    assert found(storage.CHECK, scope())[0].severity == "ok"


def test_a_database_that_answers_is_in_order(monkeypatch, tmp_path):
    severity, title = asked(monkeypatch, f"sqlite:///{tmp_path}/study.db")
    assert (severity, title.endswith("answers; it has no sweep yet")) == ("ok", True)
    assert not list(tmp_path.iterdir())


def test_a_server_that_refuses_or_says_nothing_is_a_problem_within_seconds(monkeypatch):
    monkeypatch.setattr(storage, "_PATIENCE", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        url = f"postgresql://me:secret@127.0.0.1:{server.getsockname()[1]}/trials"
        severity, title = asked(monkeypatch, url)
        assert severity == "problem"
        assert title.startswith(("cannot open storage postgresql://me@", "postgresql://me@"))
        server.listen()
        began = time.monotonic()
        assert asked(monkeypatch, url)[1].endswith("no answer within 0 seconds")
        # The driver itself gives up after ten.
        assert time.monotonic() - began < 10


def test_a_fault_of_the_machine_is_what_the_line_says(monkeypatch):
    def fail(url: str) -> bool:
        raise MachineFaultError("cannot open storage: no space left on device")

    monkeypatch.setattr("cudt.sweep.storage.has_studies", fail)
    severity, title = asked(monkeypatch, "sqlite:///study.db")
    assert (severity, title) == ("problem", "cannot open storage: no space left on device")


def test_a_url_that_is_none_is_a_problem(monkeypatch):
    assert asked(monkeypatch, "no such thing")[0] == "problem"
