"""`cudt doctor` about damaged runs: it finds each damaged file, never raises, and a second --fix has nothing left.

What it repairs is deleted or rewritten; every other file stays as it is.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import cudt
from cudt.doctor import Diagnosis, runs
from cudt.runs.run import Run
from tests.doctor.conftest import bad, scope

Damage = Callable[[bytes, random.Random], bytes]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.fixture(scope="module")
def evaluated(trained_run: Run, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(trained_run.path, path)
    cudt.evaluate(cudt.open_run(path), gammas=[0, 0.5], quiet=True)
    return path


def problems(folder: Path) -> list[Diagnosis]:
    return bad(runs.CHECK, scope(folder))


def check_damage(evaluated: Path, folder: Path, name: str, damaged: bytes) -> None:
    run = Path(shutil.copytree(evaluated, folder / "run"))
    (run / name).write_bytes(damaged)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    found = problems(folder)
    assert [one for one in found if one.severity == "problem"], f"{name}: not noticed"
    fixable = [one for one in found if one.fix is not None]
    for one in fixable:
        assert one.fix is not None
        one.fix()
    assert not [one for one in problems(folder) if one.fix is not None], name
    changed = {
        path.relative_to(run).as_posix() for path in before if not path.is_file() or path.read_bytes() != before[path]
    }
    assert changed <= ({name, "run.json", "checksums.json"} if fixable else set()), name
    shutil.rmtree(run)


def damage_each(evaluated: Path, folder: Path, times: int) -> int:
    rng, tried = random.Random(18), 0
    for path in sorted(path for path in evaluated.rglob("*") if path.is_file() and path.stat().st_size):
        for how in (cut, flip):
            for _ in range(times):
                name = path.relative_to(evaluated).as_posix()
                check_damage(evaluated, folder, name, how(path.read_bytes(), rng))
                tried += 1
    return tried


def test_each_damaged_file_is_found_and_repaired_at_most_once(evaluated, tmp_path):
    assert damage_each(evaluated, tmp_path, 1) >= 20


@pytest.mark.soak
def test_files_damaged_anywhere_are_found(evaluated, tmp_path, tally):
    tried = damage_each(evaluated, tmp_path, 50)
    assert tried >= 1000
    tally("damaged files", tried)
