from __future__ import annotations

import pytest

from cudt.runs.find import run_for
from cudt.training.history import History
from tests.conftest import tiny_recipe

ROWS = [
    (5, 1, "train", 1, "loss", 0.5),
    (5, 1, "train", 2, "loss", 0.1 + 0.2),
    (5, 1, "train", 1, "slack", 0.0),
    (5, 1, "train", 2, "slack", 1 / 3),
]


def test_a_row_for_each_name_and_layer_comes_back_to_the_last_bit(tmp_path):
    run, history = run_for(tiny_recipe(), tmp_path), History()
    history.record(5, 1, "train", [1, 2], {"loss": [0.5, 0.1 + 0.2], "slack": [0.0, 1 / 3]})
    assert history.rows == ROWS
    history.write(run)
    assert History.read(run, 4) == history


def test_rows_that_are_newer_than_the_checkpoint_are_dropped(tmp_path):
    run = run_for(tiny_recipe(), tmp_path)
    History([*ROWS]).write(run)
    assert History.read(run, 2).rows == ROWS[:2]


def test_every_layer_has_a_value():
    with pytest.raises(ValueError, match="zip"):
        History().record(1, 1, "train", [1, 2], {"loss": [0.5]})
