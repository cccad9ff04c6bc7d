"""A Hugging Face hub on 127.0.0.1: as much of its API as the real client needs to download
repositories."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]
_REPO = r"(?P<name>[^/]+/[^/]+?)"
_API = rf"/api/(?P<kind>model|dataset)s/{_REPO}"


@dataclass
class Repository:
    """Files by commit, and the commit of each branch and tag."""

    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Add files to those of a branch; returns the hash of the commit."""
        whole = {**self.files(branch), **files}
        name = hashlib.sha1(f"{len(self.commits)} {sorted(whole)}".encode()).hexdigest()
        self.commits[name], self.refs[branch] = whole, name
        return name

    def at(self, revision: str) -> str | None:
        """The commit of a branch, a tag or a commit; None if there is none."""
        return self.refs.get(revision, revision if revision in self.commits else None)

    def files(self, revision: str = "main") -> Files:
        commit = self.at(revision)
        return {} if commit is None else self.commits[commit]


@dataclass
class FakeHub:
    """What the server stores, and how it answers."""

    address: str = ""
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    is_gone: bool = False
    """Close every connection."""

    def add(self, name: str, files: Mapping[str, bytes] | Path, kind: str = "model") -> str:
        """Store a repository, or another commit of it; returns the hash of the commit."""
        if isinstance(files, Path):
            found = (path for path in files.rglob("*") if path.is_file())
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in found}
        return self.repositories.setdefault((kind, name), Repository()).commit(files)

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of a process that uses this hub; caches are below `home`."""
        kept = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "PYTHONPATH", "CUDT_CACHE")
            if name in os.environ
        }
        hub = {
            "HF_HOME": str(home),
            "HF_ENDPOINT": self.address,
            "HF_HUB_DISABLE_XET": "1",
            "OMP_NUM_THREADS": "1",
        }
        quiet = {
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "TERM": "dumb",
        }
        return {**kept, **hub, **quiet}


class _Refused(Exception):  # noqa: N818 (an answer, not a fault)
    def __init__(self, status: int, code: str = "", text: str = "") -> None:
        super().__init__(text)
        self.status, self.code, self.text = status, code, text


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._respond()

    do_GET = do_HEAD  # noqa: N815 (the names of http.server)

    def log_message(self, *_: Any) -> None:
        pass

    def _respond(self) -> None:
        if self.hub.is_gone:
            self.close_connection = True
            self.connection.close()
            return
        headers: dict[str, str] = {}
        try:
            status, answer = 200, self._answer(unquote(urlsplit(self.path).path), headers)
        except _Refused as refused:
            status, answer = refused.status, {"error": refused.text}
            headers |= {"X-Error-Code": refused.code, "X-Error-Message": refused.text}
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _answer(self, path: str, headers: dict[str, str]) -> Any:
        for pattern, answer in _ROUTES:
            if found := re.fullmatch(pattern, path):
                return getattr(self, answer)(headers, **found.groupdict())
        return b""

    def _commit_of(self, kind: str, name: str, revision: str | None) -> tuple[Repository, str]:
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            raise _Refused(404, "RepoNotFound", "Repository not found")
        if (commit := repository.at(revision or "main")) is None:
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, commit

    def _info(
        self, headers: dict[str, str], kind: str, name: str, revision: str | None = None
    ) -> Any:
        repository, commit = self._commit_of(kind, name, revision)
        siblings = [{"rfilename": file} for file in sorted(repository.files(commit))]
        return {"id": name, "sha": commit, "private": False, "siblings": siblings, "tags": []}

    def _tree(
        self, headers: dict[str, str], kind: str, name: str, revision: str, below: str | None = None
    ) -> Any:
        repository, commit = self._commit_of(kind, name, revision)
        return [
            {
                "type": "file",
                "path": file,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }
            for file, content in sorted(repository.files(commit).items())
            if file.startswith((below or "").strip("/"))
        ]

    def _resolve(
        self, headers: dict[str, str], name: str, revision: str, file: str, prefix: str = ""
    ) -> bytes:
        repository, commit = self._commit_of("dataset" if prefix else "model", name, revision)
        headers["X-Repo-Commit"] = commit
        content = repository.files(commit).get(file)
        if content is None:
            raise _Refused(404, "EntryNotFound", "Entry not found")
        headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
        return content


_ROUTES = (
    (rf"{_API}/tree/(?P<revision>[^/]+)(?P<below>/.*)?", "_tree"),
    (rf"{_API}/revision/(?P<revision>.+)", "_info"),
    (_API, "_info"),
    (rf"/(?P<prefix>datasets/)?{_REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", "_resolve"),
)


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A hub that answers until the block ends."""
    hub = FakeHub()
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), type("_Served", (_Handler,), {"hub": hub})
    ) as server:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()
