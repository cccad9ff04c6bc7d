from __future__ import annotations

import pytest

from cudt.runs.find import run_for
from cudt.training.history import History, dual_at_end
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


def test_the_dual_values_of_an_epoch_are_those_of_its_last_logged_update(tmp_path):
    run, history = run_for(tiny_recipe(), tmp_path), History()
    for step, epoch in [(1, 1), (2, 1), (3, 2)]:
        values = {"multiplier": [10.0 * step, step], "weight": [-1.0 * step, 1.0 + step], "slack": [0.0, 0.0]}
        history.record(step, epoch, "train", [1, 2], values)
    history.write(run)
    assert dual_at_end(run, 1) == {"multiplier": {1: 20, 2: 2}, "weight": {1: -2, 2: 3}}
    assert dual_at_end(run, 2) == {"multiplier": {1: 30, 2: 3}, "weight": {1: -3, 2: 4}}
    # An epoch in which nothing was logged, as in a warm-up, and a run of an earlier version.
    assert dual_at_end(run, 3) is None
    History([(1, 1, "train", 1, "multiplier", 0.5)]).write(run)
    assert dual_at_end(run, 1) is None
