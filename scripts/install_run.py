"""Install what cudt imports into the environment of the Python that runs this: requirements/run.txt, with a torch.

    .venv/bin/python scripts/install_run.py

A torch of the pinned version that is installed already is kept, whatever it was built for. Without one, the CPU build
is installed if pip's settings offer it, else PyPI's build, which needs CUDA's libraries on Linux.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "requirements"
#: pip's words for an index without the wanted version; any other error is one.
NOT_OFFERED = "No matching distribution found for torch=="


def main() -> int:
    """Return pip's exit code."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes"]
    wanted, found = _pinned(), _installed()
    constraint = []
    if found is None or found.partition("+")[0] != wanted:
        if found is not None and found.partition("+")[2] not in ("", "cpu"):
            sys.exit(f"torch {found} is installed, and cudt needs {wanted}: {_advice(found, wanted)}")
        if found is not None:
            print(f"replacing torch {found} by {wanted}", flush=True)
        cpu = [*install, "--no-deps", "-r", str(FOLDER / "cpu.txt")]
        done = subprocess.run(cpu, stderr=subprocess.PIPE, text=True)
        if done.returncode and NOT_OFFERED not in done.stderr:
            sys.stderr.write(done.stderr)
            return done.returncode
        # Not for a torch that is kept: it may need other versions, and pip would replace it to get these.
        constraint = ["-c", str(FOLDER / "cuda.txt")]
    return subprocess.run([*install, "-r", str(FOLDER / "run.txt"), *constraint]).returncode


def _pinned() -> str:
    """The version of torch in run.txt."""
    (version,) = re.findall(r"^torch==(\S+)", (FOLDER / "run.txt").read_text(), re.MULTILINE)
    return str(version)


def _installed() -> str | None:
    """The version of torch in this environment, with what it was built for: 2.13.0+cu126."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _advice(found: str, wanted: str) -> str:
    build = found.partition("+")[2]
    index = f"https://download.pytorch.org/whl/{build}"
    pip = f"{sys.executable} -m pip"
    return (
        f"install the same build of it (`{pip} install torch=={wanted} --index-url {index}`), or remove yours "
        f"(`{pip} uninstall torch`) to get PyPI's"
    )


if __name__ == "__main__":
    sys.exit(main())
