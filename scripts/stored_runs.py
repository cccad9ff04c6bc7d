"""Keep the tables of finished runs, without their weights, in small archives: results/runs/RECIPE.

    python scripts/stored_runs.py store outputs/reproduce-cpu
    python scripts/stored_runs.py restore outputs/reproduce-cpu

`cudt reproduce` finds restored runs finished and evaluated, and trains only what is missing. To train everything
anew, do not restore. The same runs give the same bytes.
"""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cudt.runs import checksums
from cudt.runs.find import open_run
from cudt.runs.info import RunInfo
from cudt.runs.run import Run

STORE = Path(__file__).parent.parent / "results" / "runs"
#: What a run can be evaluated by, but not reported on; and locks.
_LEFT_OUT = {"checkpoints", "model", ".lock", ".checksums.lock"}


def complete_runs(out: Path) -> Iterator[Run]:
    """The finished runs below a folder that need their weights no more, in order.

    They are evaluated, or never will be: their weights were not to be kept.
    """
    for file in sorted(out.glob("*/*/run.json")):
        info = (run := open_run(file.parent)).info()
        needs_weights = bool(run.recipe.settings.checkpoints.kept) and not info.evaluated
        if info.status == "finished" and not needs_weights:
            yield run


def store(out: Path, folder: Path = STORE) -> list[Path]:
    """Write an archive for each group of runs that differ in their seed alone; those of others stay as they are."""
    members: dict[tuple[str, str], list[Path]] = {}
    written = []
    with tempfile.TemporaryDirectory() as temporary:
        for run in complete_runs(out):
            copy = _copied(run, Path(temporary) / run.path.relative_to(out))
            group = f"{run.recipe.settings.objective}-{run.info().variant}"
            found = members.setdefault((run.recipe.name, group), [])
            found += sorted(file for file in copy.rglob("*") if file.is_file() and file.name not in _LEFT_OUT)
        for (recipe, group), files in members.items():
            target = folder / recipe / f"{group}.tar.xz"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archived(files, Path(temporary)))
            written.append(target)
    return written


def _copied(run: Run, target: Path) -> Path:
    """Copy what is stored of a run, without the paths of this machine."""
    shutil.copytree(run.path, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    weights = [name for name in checksums.recorded(target) if Path(name).parts[0] in _LEFT_OUT]
    checksums.forget(target, *weights)
    command = f"cudt train --recipe {'/'.join(run.path.parts[-2:])}/recipe.yaml"
    open_run(target).update_info(RunInfo(data_root="data", command=command))
    return target


def archived(files: list[Path], below: Path) -> bytes:
    """An archive of files, named from a folder, with nothing of this machine: no times, no owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        for file in files:
            member = tarfile.TarInfo(str(file.relative_to(below)))
            member.size = file.stat().st_size
            with file.open("rb") as content:
                archive.addfile(member, content)
    return buffer.getvalue()


def restore(out: Path, folder: Path = STORE) -> int:
    """Unpack the runs that a folder does not have; the number of them."""
    restored = set()
    for source in sorted(folder.glob("*/*.tar.xz")):
        with tarfile.open(source) as archive:
            members = archive.getmembers()
            runs = {_run_of(member) for member in members}
            wanted = {run for run in runs if not (out / run).exists()}
            archive.extractall(out, [one for one in members if _run_of(one) in wanted], filter="data")
            restored |= wanted
    return len(restored)


def _run_of(member: tarfile.TarInfo) -> Path:
    return Path(*Path(member.name).parts[:2])


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("store", "restore"):
        sys.exit(__doc__)
    if sys.argv[1] == "store":
        for path in store(Path(sys.argv[2])):
            print(f"{path.stat().st_size / 1024:7.0f} KiB  {path}")
    else:
        print(f"{restore(Path(sys.argv[2]))} runs restored to {sys.argv[2]}")
