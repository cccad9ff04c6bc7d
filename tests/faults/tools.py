"""Tiny runs of all kinds, commands in forked processes, kills, and comparisons of folders: for all tests of faults.

This file imports everything that commands need, so that a command takes a second instead of five:

    folder = write_project(tmp_path / "mine")                       # its data is next to it, in tmp_path / "data"
    ended = command(folder, *train("text"))                            # `cudt train …` there; .code, .output, .errors
    ended = command(folder, *train("text"), before=dying_at(7))        # killed at its 7th change of a file
    check_parses(folder / "out")                                    # no file is half written
    assert_same(folder / "out", other / "out")                      # byte by byte; see `differences`
    assert_nothing_left(folder)                                     # no temporaries, here or in TMPDIR
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.util
import os
import re
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401 (what commands import on their way, here once for all processes)
import optuna.storages  # noqa: F401
import pandas as pd
import plotly.graph_objects  # noqa: F401
import psutil
import pyarrow.parquet
import torch
import yaml
from PIL import Image
from safetensors import safe_open

import cudt.evaluation.evaluate
import cudt.report
import cudt.sweep.run_sweep
import cudt.training.launch  # noqa: F401
from cudt.utils import temporaries
from cudt.utils.compat import survive_torchvision_mismatch
from tests.conftest import TINY
from tests.instructions import write_instructions
from tests.instructions import write_recipe as write_instructions_recipe
from tests.pretrained import tiny_llama
from tests.processes import Ended, run_command

survive_torchvision_mismatch()
import peft  # noqa: E402, F401
import transformers.models.llama.modeling_llama  # noqa: E402, F401

#: Seconds after which a command is taken to hang.
LIMIT = 120.0
KINDS = ("text", "video", "causal")
_OFTEN = ("training.checkpoint_every=2", "training.log_every=1")
_VIDEO = ("task.size=16", "task.train=6", "evaluation.gammas=0.1,0.5", "model.layers=2", "evaluation.batch_size=2")
_RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "text": ("reviews-ut", TINY),
    "video": ("smoke-video", _VIDEO),
    "causal": ("../data/tiny-alpaca.yaml", ("task.limit={train: 12, validation: 4, test: 4}",)),
}

# ---------------------------------------------------------------- projects


def write_project(folder: Path) -> Path:
    """A folder for commands. Data and weights are next to it, for all projects there."""
    data = folder.parent / "data"
    if not data.is_dir():
        data.mkdir(parents=True)
        write_instructions(data)
        tiny_llama(data / "models" / "llama")
        write_instructions_recipe(data, "llama")
        asked = [{"instruction": f"Say {word}."} for word in ("red", "blue")]
        (data / "questions.json").write_text(json.dumps(asked))
        (data / "search.yaml").write_text(_SEARCH)
    folder.mkdir()
    return folder


_SEARCH = """\
recipe: reviews-ut
score: {measure: metric, direction: maximize}
fixed:
  task.train: 96
  task.validation: 40
  task.test: 40
  model.layers: 3
  model.width: 16
  model.attention_width: 8
  training.epochs: 2
  training.batch_size: 32
  training.log_every: 1
  training.checkpoint_every: 1
arms:
  constrained:
    sampler: grid
    search: {descent.alpha: [0.1, 0.2, 0.3, 0.4]}
"""


def train(kind: str, *settings: str, objective: str = "constrained", out: str = "out") -> tuple[str, ...]:
    """The arguments of `cudt train` for a run of a kind, with a checkpoint every second update."""
    recipe, own = _RECIPES[kind]
    changes = (part for one in (*own, *_OFTEN, *settings) for part in ("--set", one))
    root = ("--data-root", "../data") if kind == "causal" else ()
    return ("train", "--recipe", recipe, "--objective", objective, *changes, *root, "--device", "cpu", "--out", out)


def the_run(folder: Path) -> Path:
    """The only run folder below `folder`."""
    (found,) = {path.parent for path in folder.rglob("run.json")}
    return found


# ---------------------------------------------------------------- commands


def command(folder: Path, *arguments: str, before: Callable[[], object] | None = None, limit: float = LIMIT) -> Ended:
    """`cudt ARGUMENTS` in a folder, in a forked process in which `before` is called first."""
    return ended(folder, begin(folder, *arguments, before=before), limit)


def begin(folder: Path, *arguments: str, before: Callable[[], object] | None = None) -> int:
    """The same, not waited for: the process, which leads a group of its own."""
    if process := os.fork():
        return process
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        torch.set_num_threads(1)
        (folder / "tmp").mkdir(exist_ok=True)
        os.environ |= {"TMPDIR": str(folder / "tmp"), "CUDT_CACHE": str(folder / "cache"), "TERM": "dumb"}
        # Instead of the time, in PDFs.
        os.environ["SOURCE_DATE_EPOCH"] = "0"
        tempfile.tempdir = None
        # Workers are forked too: spawned ones would import torch again.
        multiprocessing.get_context = lambda method=None: _FORK  # type: ignore[assignment]
        if before is not None:
            before()
        # Absolute, because a run records it, so that runs of two projects are the same.
        run_command(folder / ".printed", *(one.replace("../data", str(folder.parent / "data")) for one in arguments))
    finally:
        os._exit(70)


_FORK = multiprocessing.get_context("fork")


def ended(folder: Path, process: int, limit: float = LIMIT) -> Ended:
    """Wait for a process of `begin`; an AssertionError if it hangs."""
    end = time.monotonic() + limit
    while not (found := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() > end:
            kill_all(process)
            raise AssertionError(f"the command takes more than {limit:.0f} s\n{_printed(folder)}")
        time.sleep(0.005)
    return Ended(os.waitstatus_to_exitcode(found[1]), _printed(folder), _printed(folder, "err"))


def _printed(folder: Path, which: str = "out") -> str:
    path = folder / f".printed.{which}"
    return path.read_text(errors="replace") if path.is_file() else ""


# ---------------------------------------------------------------- kills


def kill_all(process: int) -> None:
    """Kill a process of `begin`, and all that it started, in their own groups too; it is not waited for."""
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(process)
        # Before they can start others.
        first.suspend()
        for one in [*first.children(recursive=True), first]:
            with contextlib.suppress(psutil.Error):
                one.kill()


def descendants(process: int) -> list[psutil.Process]:
    """The processes that a process started, and those that they started."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process).children(recursive=True)
    return []


def wait_until_gone(processes: Sequence[psutil.Process], limit: float = 90.0) -> None:
    """Wait for workers that stop because their parent was killed."""
    _, alive = psutil.wait_procs(processes, timeout=limit)
    assert not alive, f"left: {alive}"


#: What changes files, in Python; libraries in other languages write between two of these.
_CHANGES = ("replace", "rename", "link", "fsync", "unlink", "remove", "mkdir", "rmdir", "open", "truncate")


def dying_at(moment: int, *, how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """For `before`: kill the process just before its n-th change of a file, counted over its workers, too."""
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
_NOT_COMPARED = re.compile(r"(^|/)(\.lock|\.[^/]*\.lock|\.printed\.(out|err)|\.cudt-home|logs/.*)$|^(cache|tmp)/")


def assert_same(found: Path, expected: Path) -> None:
    """Two folders have the same files with the same bytes, but for `normalised`."""
    assert not (different := differences(found, expected)), "\n".join(different)


def differences(found: Path, expected: Path) -> list[str]:
    """The files that only one of two folders has, and those whose content differs."""
    one, other = _files(found), _files(expected)
    lines = [f"only in {found}: {name}" for name in sorted(one - other)]
    lines += [f"missing in {found}: {name}" for name in sorted(other - one)]
    return lines + [
        f"different: {name}" for name in sorted(one & other) if normalised(found / name) != normalised(expected / name)
    ]


def _files(folder: Path) -> set[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return {name for name in names if not _NOT_COMPARED.search(name)}


def normalised(path: Path) -> bytes:
    """The content of a file without what may differ: times, checksums of files with times, deaths of workers."""
    content = path.read_bytes()
    if path.name == "run.json":
        return _without(content, "begun", "ended")
    if path.name == "checksums.json":
        values = json.loads(content)
        # run.json has times.
        values["files"].pop("run.json", None)
        return json.dumps({**values, "sha256": ""}).encode()
    if path.name == "trials.csv":
        return re.sub(rb"(,(seconds|deaths),)[0-9.]+", rb"\1", content)
    if path.name in ("trials_wide.csv", "best.csv"):
        table = pd.read_csv(path, dtype=str)
        return table.drop(columns=[name for name in table if re.search("seconds|deaths", str(name))]).to_csv().encode()
    if path.suffix == ".html":
        return re.sub(rb"written [-0-9: ]+ UTC", b"", content)
    if path.suffix == ".db":
        # Optuna's storage has times, holders and free pages.
        return b""
    return content


def _without(content: bytes, *keys: str) -> bytes:
    return json.dumps({key: value for key, value in json.loads(content).items() if key not in keys}).encode()


def check_parses(folder: Path) -> None:
    """Every file below a folder can be read whole; temporaries are not looked at.

    The last line of a history.csv may be incomplete while its run is not finished: the checkpoint has its length.
    """
    for path in sorted(folder.rglob("*")):
        is_temporary = any(temporaries.is_temporary(part) for part in path.relative_to(folder).parts)
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
    assert len({line.count(",") for line in text.splitlines() if '"' not in line}) <= 1, "rows of different lengths"


def _parse_weights(path: Path) -> None:
    with safe_open(path, "pt") as stored:
        for name in stored.keys():  # noqa: SIM118 (not a dictionary)
            stored.get_tensor(name)


def _parse_picture(path: Path) -> None:
    with Image.open(path) as picture:
        picture.load()


def _parse_database(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]


def _parse_page(path: Path) -> None:
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


_PARSERS: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".csv": _parse_csv,
    ".yaml": lambda path: yaml.safe_load(path.read_text(encoding="utf-8")),
    ".safetensors": _parse_weights,
    ".parquet": lambda path: pyarrow.parquet.read_table(path),
    ".png": _parse_picture,
    ".db": _parse_database,
    ".html": _parse_page,
    ".pt": lambda path: torch.load(path, weights_only=True),
}


def assert_nothing_left(folder: Path) -> None:
    """No temporary of any process is left in a project, nor anything in its folder for temporary files."""
    left = [path for path in folder.rglob("*") if temporaries.is_temporary(path.name)]
    left += [*(folder / "tmp").iterdir()] if (folder / "tmp").is_dir() else []
    assert not left, left


def copy_of(folder: Path, target: Path) -> Path:
    """A copy of a project; hard links between its files stay."""
    shutil.copytree(folder, target, copy_function=_link_or_copy(), symlinks=True)
    return target


def _link_or_copy() -> Callable[[str, str], None]:
    known: dict[tuple[int, int], str] = {}

    def copy(source: str, to: str) -> None:
        facts = Path(source).stat()
        first = known.setdefault((facts.st_dev, facts.st_ino), to)
        if first == to:
            shutil.copy2(source, to)
        else:
            os.link(first, to)

    return copy
