"""Write a release into dist/: wheel, sdist, the list of parts (SBOM, CycloneDX) and SHA256SUMS.

    make release

The same commit gives the same bytes: times in the archives are that of the commit, or SOURCE_DATE_EPOCH. The wheel is
built from the sdist, and has the list of parts inside.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]
#: Where hatch_build.py looks for the list of parts.
PARTS = ROOT / "cudt.cdx.json"


def main(dist: Path) -> None:
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or _time_of_commit()}
    try:
        PARTS.write_bytes(_parts(environment))
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)]
        subprocess.run([*build, str(ROOT)], env=environment, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = dist.glob("*.whl")
        check(wheel)
        shutil.copy(PARTS, dist / f"{wheel.name.split('-py3')[0]}.cdx.json")
    finally:
        PARTS.unlink(missing_ok=True)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(dist.iterdir())]
    (dist / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")


def _time_of_commit() -> str:
    return subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _parts(environment: dict[str, str]) -> bytes:
    """The pinned packages that cudt imports, and those of CUDA, as validated CycloneDX JSON."""
    pinned = b"".join((ROOT / "requirements" / name).read_bytes() for name in ("run.txt", "cuda.txt"))
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", "--pyproject=pyproject.toml"]
    options = ["--output-format=JSON", "--output-reproducible", "--validate", "-"]
    return subprocess.run(
        [*command, *options], cwd=ROOT, env=environment, input=pinned, check=True, stdout=subprocess.PIPE
    ).stdout


def check(wheel: Path) -> None:
    """Raise if a wheel's metadata is invalid or a file differs from RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        Metadata.from_email(archive.read(record.replace("RECORD", "METADATA")))
        recorded = {}
        for line in archive.read(record).decode().splitlines():
            name, digest, _ = line.rsplit(",", 2)
            recorded[name] = digest
        for name in archive.namelist():
            content = hashlib.sha256(archive.read(name)).digest()
            expected = "" if name == record else "sha256=" + base64.urlsafe_b64encode(content).decode().rstrip("=")
            if recorded.get(name) != expected:
                sys.exit(f"{wheel}: {name} is not as RECORD says")


if __name__ == "__main__":
    main(ROOT / "dist")
