"""2,000 fuzzed data files and pretrained models: each is read or refused in one line, in 2 s and 200 MB at most.

Byte flips, cuts, insertions, repeated blocks and extreme lengths in valid files, and nasty values in rows, headers and
configurations. A message with kind and seed is enough to make the file again (`data_files.py`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import IO

import pytest

from tests.faults import data_files

#: Seeds of each kind: a few for every day, and together 2,000 for the soak.
_FEW, _MANY = 6, 154
#: Seconds without an answer after which a file counts as endless.
_PATIENCE = 30


@pytest.fixture(scope="module")
def _warm() -> None:
    data_files.warm_up()


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize("kind", data_files.VALID)
def test_a_damaged_or_hostile_file_is_read_or_refused_in_one_line(kind):
    answers = [data_files.outcome(kind, seed) for seed in range(_FEW)]
    assert not [problem for answer in answers if (problem := data_files.problem(answer))]


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize("error", [TypeError, MemoryError, RecursionError, SystemExit])
def test_any_other_error_would_be_noticed(error, monkeypatch):
    def fail(*_: object) -> None:
        raise error("no")

    monkeypatch.setattr(data_files, "read_files", fail)
    assert f'"result": "{error.__name__}"' in data_files.problem(data_files.outcome("csv", 0))


class Reader:
    """A process that reads fuzzed files, with a limit on its address space; a new one after a crash."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "tests.faults.data_files"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._answers.readline() == "ready\n"

    @property
    def _answers(self) -> IO[str]:
        assert self._process.stdout
        return self._process.stdout

    def problem(self, kind: str, seed: int) -> tuple[str, str]:
        """The result of a file, and what is wrong with it."""
        assert self._process.stdin
        self._process.stdin.write(f"{kind} {seed}\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._answers], [], [], _PATIENCE)
        line = self._answers.readline() if ready else ""
        if line:
            answer = json.loads(line)
            return answer["result"], data_files.problem(answer)
        what = f"ended with {self._process.wait(_PATIENCE)}" if ready else f"no answer in {_PATIENCE} s"
        self.close()
        self.__init__()  # type: ignore[misc]
        return "crash", f"{kind} {seed}: {what}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()


@pytest.mark.soak
@pytest.mark.parametrize("kind", data_files.VALID)
def test_two_thousand_files_in_a_process_of_their_own(kind, reader, capsys):
    results, problems = Counter[str](), []
    for seed in range(_FEW, _FEW + _MANY):
        result, problem = reader.problem(kind, seed)
        results[result] += 1
        problems += [problem] if problem else []
    with capsys.disabled():
        print(f"{kind}: {dict(results)}")
    assert not problems
