from __future__ import annotations

import hashlib
import math
import os
from typing import Any

import pandas as pd
import pytest

from cudt.runs.run import TABLES, run_for
from cudt.training.history import History
from cudt.utils.errors import DamagedFileError, UserError
from tests.conftest import tiny_recipe

ROWS = [
    (5, 1, "train", 1, "loss", 0.5),
    (5, 1, "train", 2, "loss", 0.1 + 0.2),
    (5, 1, "train", 1, "slack", 0.0),
    (5, 1, "train", 2, "slack", 1 / 3),
]


def saved(run, rows) -> History:
    """A history of these rows, on disk."""
    history = History([*rows])
    history.append(run)
    return history


def rows_of(run) -> list[tuple[Any, ...]]:
    return list(run.read_table("history").itertuples(index=False, name=None))


@pytest.fixture
def run(tmp_path):
    return run_for(tiny_recipe(), tmp_path)


def test_a_row_for_each_name_and_layer_comes_back_to_the_last_bit(run):
    history = History()
    history.record(5, 1, "train", [1, 2], {"loss": [0.5, 0.1 + 0.2], "slack": [0.0, 1 / 3]})
    assert history.rows == ROWS
    history.append(run)
    assert rows_of(run) == ROWS
    assert history.rows == []


def test_appended_rows_are_the_file_that_pandas_writes_at_once(run):
    rows = [
        *ROWS,
        (6, 1, "train", 1, "loss", math.inf),
        (6, 1, "train", 2, "a, b", math.nan),
        (7, 2, "x", 0, "y", 1e-17),
    ]
    history = saved(run, rows[:1])
    for row in rows[1:]:
        history.rows.append(row)
        history.append(run)
    expected = pd.DataFrame(rows, columns=TABLES["history"]).to_csv(index=False, na_rep="nan")
    assert (run.path / "history.csv").read_text() == expected


def test_rows_that_are_newer_than_the_checkpoint_are_dropped_at_the_next_one(run):
    size = saved(run, ROWS[:2]).size
    newer = History(ROWS[2:], size)
    newer.append(run)
    assert rows_of(run) == ROWS
    resumed = History.resumed(run, size)
    resumed.rows.append(ROWS[3])
    resumed.append(run)
    assert rows_of(run) == [*ROWS[:2], ROWS[3]]


@pytest.mark.parametrize("cut", [1, 5, 25])
def test_an_incomplete_last_line_is_not_read_and_dropped_at_the_next_checkpoint(run, cut):
    size = saved(run, ROWS[:2]).size
    content = (run.path / "history.csv").read_bytes()
    (run.path / "history.csv").write_bytes(content + b"5,1,train,1,slack,0.333333"[:cut])
    assert rows_of(run) == ROWS[:2]
    History(ROWS[2:], History.resumed(run, size).size).append(run)
    assert rows_of(run) == ROWS


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_file_shorter_than_at_the_checkpoint_is_an_error(run, is_missing):
    size, file = saved(run, ROWS).size, run.path / "history.csv"
    file.unlink() if is_missing else os.truncate(file, size - 3)
    with pytest.raises(
        UserError,
        match=rf"history.csv: damaged .*\d+ bytes, but it had {size} .*to train from the beg",
    ):
        History.resumed(run, size)


def test_changed_bytes_before_the_checkpoint_are_an_error_and_those_after_it_are_not(run):
    history, file = saved(run, ROWS[:2]), run.path / "history.csv"
    record = history.saved()
    assert record.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    saved_bytes = file.read_bytes()
    file.write_bytes(saved_bytes + b"junk")
    assert History.resumed(run, record.bytes, record.sha256).saved() == record
    for position in (0, 40, len(saved_bytes) - 1):
        changed = bytearray(saved_bytes)
        changed[position] ^= 1
        file.write_bytes(changed)
        with pytest.raises(
            DamagedFileError,
            match=r"history.csv: damaged \(changed since the checkpoint was written",
        ):
            History.resumed(run, record.bytes, record.sha256)


def test_the_checksum_of_a_resumed_history_goes_on(run, tmp_path):
    record = saved(run, ROWS[:2]).saved()
    resumed = History.resumed(run, record.bytes, record.sha256)
    resumed.rows += ROWS[2:]
    resumed.append(run)
    assert resumed.saved() == saved(run_for(tiny_recipe(seed=1), tmp_path), ROWS).saved()
