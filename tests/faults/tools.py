"""Tiny runs, commands in forked processes, kills, and comparisons of folders: for all tests of
faults.

This file imports everything that commands need, so that a command takes a second instead of five:

    folder = write_project(tmp_path / "mine")
    ended = command(folder, *train())                               # `cudt train …` there; .code, .output, .errors
    ended = command(folder, *train(), before=dying_at(7))           # killed at its 7th change of a file
    check_parses(folder / "out")                                    # no file is half written
    assert_same(folder / "out", other / "out")                      # byte by byte; see `differences`
    assert_nothing_left(folder)                                     # no temporaries, here or in TMPDIR
"""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import safe_open

import cudt.training.train  # noqa: F401 (what commands import on their way, here once for all processes)
from tests.conftest import TINY
from tests.processes import Ended, run_command

#: Seconds after which a command is taken to hang.
LIMIT = 120.0
_OFTEN = ("training.checkpoint_every=2", "training.log_every=1")


def write_project(folder: Path) -> Path:
    """A folder for commands."""
    folder.mkdir()
    return folder


def train(*settings: str) -> tuple[str, ...]:
    """The arguments of `cudt train` for a tiny run, with a checkpoint every second update."""
    changes = (part for one in (*TINY, *_OFTEN, *settings) for part in ("--set", one))
    return ("train", "--recipe", "reviews-ut", *changes, "--device", "cpu", "--out", "out")


# ---------------------------------------------------------------- commands


def command(folder: Path, *arguments: str, before: Callable[[], object] | None = None) -> Ended:
    """`cudt ARGUMENTS` in a folder, in a forked process in which `before` is called first."""
    if process := os.fork():
        return _ended(folder, process)
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        torch.set_num_threads(1)
        (folder / "tmp").mkdir(exist_ok=True)
        os.environ |= {
            "TMPDIR": str(folder / "tmp"),
            "CUDT_CACHE": str(folder / "cache"),
            "TERM": "dumb",
        }
        tempfile.tempdir = None
        if before is not None:
            before()
        run_command(folder / ".printed", *arguments)
    finally:
        os._exit(70)


def _ended(folder: Path, process: int) -> Ended:
    """Wait for a process; an AssertionError if it hangs."""
    end = time.monotonic() + LIMIT
    while not (found := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            raise AssertionError(f"the command takes more than {LIMIT:.0f} s\n{_printed(folder)}")
        time.sleep(0.005)
    return Ended(os.waitstatus_to_exitcode(found[1]), _printed(folder), _printed(folder, "err"))


def _printed(folder: Path, which: str = "out") -> str:
    path = folder / f".printed.{which}"
    return path.read_text(errors="replace") if path.is_file() else ""


# ---------------------------------------------------------------- kills


#: What changes files, in Python; libraries in other languages write between two of these.
_CHANGES = (
    "replace",
    "rename",
    "link",
    "fsync",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "open",
    "truncate",
)


def dying_at(moment: int, *, how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """For `before`: kill the process just before its n-th change of a file, counted over its
    workers, too."""
    return partial(_watch, RawValue("l", 0), moment, how)


def count_moments(folder: Path, *arguments: str) -> int:
    """The number of changes of files that a command makes; it must succeed."""
    counter = RawValue("l", 0)
    done = command(folder, *arguments, before=partial(_watch, counter, -1, signal.SIGKILL))
    assert done.code == 0, done.errors
    return counter.value


def _watch(counter: Any, moment: int, how: signal.Signals) -> None:
    def watched(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        # A file that is opened for reading does not change.
        if original is not opened or (len(given) > 1 and given[1] & os.O_CREAT):
            counter.value += 1
            if counter.value == moment:
                os.kill(os.getpid(), how)
        return original(*given, **named)

    opened = os.open
    for name in _CHANGES:
        setattr(os, name, partial(watched, getattr(os, name)))


# ---------------------------------------------------------------- files


#: Not results: locks, what a command printed, the cache, ids, logs of workers.
_NOT_COMPARED = re.compile(
    r"(^|/)(\.lock|\.[^/]*\.lock|\.printed\.(out|err)|\.cudt-home|logs/.*)$|^(cache|tmp)/"
)


def assert_same(found: Path, expected: Path) -> None:
    """Two folders have the same files with the same bytes, but for `normalised`."""
    assert not (different := differences(found, expected)), "\n".join(different)


def differences(found: Path, expected: Path) -> list[str]:
    """The files that only one of two folders has, and those whose content differs."""
    one, other = _files(found), _files(expected)
    lines = [f"only in {found}: {name}" for name in sorted(one - other)]
    lines += [f"missing in {found}: {name}" for name in sorted(other - one)]
    return lines + [
        f"different: {name}"
        for name in sorted(one & other)
        if normalised(found / name) != normalised(expected / name)
    ]


def _files(folder: Path) -> set[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return {name for name in names if not _NOT_COMPARED.search(name)}


def normalised(path: Path) -> bytes:
    """The content of a file without what may differ: times, and checksums of files with times."""
    content = path.read_bytes()
    if path.name == "run.json":
        return _without(content, "begun", "ended")
    if path.name == "checksums.json":
        values = json.loads(content)
        # run.json has times.
        values["files"].pop("run.json", None)
        return json.dumps({**values, "sha256": ""}).encode()
    return content


def _without(content: bytes, *keys: str) -> bytes:
    return json.dumps(
        {key: value for key, value in json.loads(content).items() if key not in keys}
    ).encode()


def check_parses(folder: Path) -> None:
    """Every file below a folder can be read whole; temporaries are not looked at.

    The last line of a history.csv may be incomplete while its run is not finished: the checkpoint
    has its length.
    """
    for path in sorted(folder.rglob("*")):
        is_temporary = any(part.endswith(".tmp") for part in path.relative_to(folder).parts)
        if path.is_file() and not is_temporary:
            try:
                _PARSERS.get(path.suffix, Path.read_bytes)(path)
            except Exception as error:
                raise AssertionError(f"{path} is half written: {error}") from error


def _parse_csv(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "history.csv":
        text = text[: text.rfind("\n") + 1]
    assert not text or text.endswith("\n"), "the last line is not complete"
    assert len({line.count(",") for line in text.splitlines() if '"' not in line}) <= 1, (
        "rows of different lengths"
    )


def _parse_weights(path: Path) -> None:
    with safe_open(path, "pt") as stored:
        for name in stored.keys():  # noqa: SIM118 (not a dictionary)
            stored.get_tensor(name)


_PARSERS: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".csv": _parse_csv,
    ".yaml": lambda path: yaml.safe_load(path.read_text(encoding="utf-8")),
    ".safetensors": _parse_weights,
}


def assert_nothing_left(folder: Path) -> None:
    """No temporary of any process is left in a project, nor anything in its folder for temporary
    files."""
    left = [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
    left += [*(folder / "tmp").iterdir()] if (folder / "tmp").is_dir() else []
    assert not left, left
