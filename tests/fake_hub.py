"""A Hugging Face hub on 127.0.0.1: as much of its API as the real client needs to upload and download repositories."""

from __future__ import annotations

import base64
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

import yaml

TOKEN = "hf_" + "x" * 30
USER = "alice"
Files = dict[str, bytes]
_REPO = r"(?P<name>[^/]+/[^/]+?)"
_API = rf"/api/(?P<kind>model|dataset)s/{_REPO}"


@dataclass
class Repository:
    """Files by commit, and the commit of each branch and tag."""

    private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: Mapping[str, bytes], branch: str = "main", message: str = "") -> str:
        """Add files to those of a branch; returns the hash of the commit."""
        whole = {**self.files(branch), **files}
        name = hashlib.sha1(f"{len(self.commits)} {sorted(whole)}".encode()).hexdigest()
        self.commits[name], self.refs[branch] = whole, name
        self.messages.append(message)
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
    blobs: dict[str, bytes] = field(default_factory=dict)
    fails: bool = False
    """Answer every request with an error of the server."""
    is_gone: bool = False
    """Close every connection."""
    read_only: bool = False
    """The token may not write."""

    def add(self, name: str, files: Mapping[str, bytes] | Path, kind: str = "model") -> str:
        """Store a repository, or another commit of it; returns the hash of the commit."""
        if isinstance(files, Path):
            found = (path for path in files.rglob("*") if path.is_file())
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in found}
        return self.repositories.setdefault((kind, name), Repository()).commit(files)

    def model(self, name: str) -> Repository:
        return self.repositories["model", name]

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """The environment of a process that uses this hub; caches are below `home`."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "CUDT_CACHE") if name in os.environ}
        hub = {"HF_HOME": str(home), "HF_ENDPOINT": self.address, "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
        quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TERM": "dumb"}
        return {**kept, **hub, **quiet, **({} if token is None else {"HF_TOKEN": token})}


class _Refused(Exception):  # noqa: N818 (an answer, not a fault)
    def __init__(self, status: int, code: str = "", text: str = "", **more: str) -> None:
        super().__init__(text)
        self.status, self.code, self.text, self.more = status, code, text, more


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._respond()

    do_GET = do_POST = do_PUT = do_HEAD  # noqa: N815 (the names of http.server)

    def log_message(self, *_: Any) -> None:
        pass

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.hub.is_gone:
            self.close_connection = True
            self.connection.close()
            return
        headers: dict[str, str] = {}
        try:
            if self.hub.fails:
                raise _Refused(503)
            status, answer = 200, self._answer(unquote(urlsplit(self.path).path), body, headers)
        except _Refused as refused:
            status, answer = refused.status, {"error": refused.text, **refused.more}
            headers |= {"X-Error-Code": refused.code, "X-Error-Message": refused.text}
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _answer(self, path: str, body: bytes, headers: dict[str, str]) -> Any:
        for pattern, answer in _ROUTES:
            if found := re.fullmatch(pattern, path):
                return getattr(self, answer)(body, headers, **found.groupdict())
        if path == "/":
            return b""
        raise _Refused(404, "", f"no route {path}")

    def _check_writer(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refused(401, "", "Invalid username or password.")
        if self.hub.read_only:
            raise _Refused(403, "", "You don't have the rights to write to this repository.")

    def _repository(self, kind: str, name: str) -> Repository:
        found = self.hub.repositories.get((kind, name))
        if found is None or (found.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            raise _Refused(404, "RepoNotFound", "Repository not found")
        return found

    def _commit_of(self, kind: str, name: str, revision: str | None) -> tuple[Repository, str]:
        repository = self._repository(kind, name)
        commit = repository.at(revision or "main")
        if commit is None:
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, commit

    # ---- reading

    def _whoami(self, body: bytes, headers: dict[str, str]) -> Any:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refused(401, "", "Invalid username or password.")
        return {"name": USER, "type": "user", "auth": {"accessToken": {"role": "write"}}}

    def _info(self, body: bytes, headers: dict[str, str], kind: str, name: str, revision: str | None = None) -> Any:
        repository, commit = self._commit_of(kind, name, revision)
        siblings = [{"rfilename": file} for file in sorted(repository.files(commit))]
        return {"id": name, "sha": commit, "private": repository.private, "siblings": siblings, "tags": []}

    def _tree(
        self, body: bytes, headers: dict[str, str], kind: str, name: str, revision: str, below: str | None = None
    ) -> Any:
        repository, commit = self._commit_of(kind, name, revision)
        return [
            {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for file, content in sorted(repository.files(commit).items())
            if file.startswith((below or "").strip("/"))
        ]

    def _paths_info(self, body: bytes, headers: dict[str, str], kind: str, name: str, revision: str) -> Any:
        asked = json.loads(body)["paths"]
        return [one for one in self._tree(b"", headers, kind, name, revision) if one["path"] in asked]

    def _resolve(
        self, body: bytes, headers: dict[str, str], name: str, revision: str, file: str, prefix: str = ""
    ) -> bytes:
        repository, commit = self._commit_of("dataset" if prefix else "model", name, revision)
        headers["X-Repo-Commit"] = commit
        content = repository.files(commit).get(file)
        if content is None:
            raise _Refused(404, "EntryNotFound", "Entry not found")
        headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
        return content

    # ---- writing

    def _create(self, body: bytes, headers: dict[str, str]) -> Any:
        self._check_writer()
        asked = json.loads(body)
        owner = asked.get("organization") or USER
        if owner != USER:
            raise _Refused(403, "", f'You don\'t have the rights to create a model under the namespace "{owner}"')
        key, url = (
            (asked.get("type") or "model", f"{owner}/{asked['name']}"),
            f"{self.hub.address}/{owner}/{asked['name']}",
        )
        if key in self.hub.repositories:
            raise _Refused(409, "", "You already created this model repo", url=url)
        private = asked.get("private") is True or asked.get("visibility") == "private"
        self.hub.repositories[key] = Repository(private)
        self.hub.repositories[key].commit({".gitattributes": b"*.safetensors filter=lfs\n"}, message="initial commit")
        return {"url": url, "name": key[1], "id": "1"}

    def _validate(self, body: bytes, headers: dict[str, str]) -> Any:
        """As the hub does: the metadata must be YAML, and results must have their parts."""
        metadata = yaml.safe_load(json.loads(body)["content"].split("---")[1])
        for model in metadata.get("model-index", []):
            for result in model["results"]:
                assert result["task"]["type"]
                assert {"name", "type"} <= set(result["dataset"])
                assert all({"type", "value"} <= set(metric) for metric in result["metrics"])
        return {"errors": [], "warnings": []}

    def _branch(self, body: bytes, headers: dict[str, str], kind: str, name: str, branch: str) -> Any:
        self._check_writer()
        repository, commit = self._commit_of(kind, name, None)
        if branch in repository.refs:
            raise _Refused(409, "", "Reference already exists")
        repository.refs[branch] = commit
        return {}

    def _preupload(self, body: bytes, headers: dict[str, str], kind: str, name: str, revision: str) -> Any:
        self._check_writer()
        self._commit_of(kind, name, revision)
        modes = {
            file["path"]: "lfs" if file["path"].endswith(".safetensors") else "regular"
            for file in json.loads(body)["files"]
        }
        return {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]}

    def _lfs_batch(self, body: bytes, headers: dict[str, str], name: str) -> Any:
        self._check_writer()
        asked = json.loads(body)["objects"]
        return {
            "objects": [
                {**one, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{one['oid']}"}}} for one in asked
            ]
        }

    def _blob(self, body: bytes, headers: dict[str, str], oid: str) -> Any:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.blobs[oid] = body
        return b""

    def _commit(self, body: bytes, headers: dict[str, str], kind: str, name: str, revision: str) -> Any:
        self._check_writer()
        repository, _ = self._commit_of(kind, name, revision)
        files: Files = {}
        message = ""
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                files[value["path"]] = self.hub.blobs[value["oid"]]
        commit = repository.commit(files, revision, message)
        return {"commitUrl": f"{self.hub.address}/{name}/commit/{commit}", "commitOid": commit, "pullRequestUrl": None}


_ROUTES = (
    ("/api/whoami-v2", "_whoami"),
    ("/api/repos/create", "_create"),
    ("/api/validate-yaml", "_validate"),
    (rf"{_API}/preupload/(?P<revision>.+)", "_preupload"),
    (rf"{_API}/commit/(?P<revision>.+)", "_commit"),
    (rf"{_API}/branch/(?P<branch>.+)", "_branch"),
    (rf"{_API}/tree/(?P<revision>[^/]+)(?P<below>/.*)?", "_tree"),
    (rf"{_API}/paths-info/(?P<revision>.+)", "_paths_info"),
    (rf"{_API}/revision/(?P<revision>.+)", "_info"),
    (_API, "_info"),
    (rf"/{_REPO}\.git/info/lfs/objects/batch", "_lfs_batch"),
    (r"/lfs/(?P<oid>\w+)", "_blob"),
    (rf"/(?P<prefix>datasets/)?{_REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", "_resolve"),
)


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A hub that answers until the block ends."""
    hub = FakeHub()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("_Served", (_Handler,), {"hub": hub})) as server:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()
