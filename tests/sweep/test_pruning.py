"""Which runs are ended early: by hand for the median, literally for successive halving."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from cudt.sweep import pruning
from cudt.sweep.pruning import Referee
from cudt.sweep.search import Pruner
from cudt.utils.errors import TrainingPrunedError
from tests.conftest import tiny_recipe, train_quietly


def study_of(curves: dict[str, list[float]], pruner: Pruner, direction: Any = "maximize") -> tuple[Any, dict[str, int]]:
    """Run curves one after another; the study, and after how many epochs each ended."""
    epochs = max(map(len, curves.values()))
    study = optuna.create_study(direction=direction, pruner=pruning.build(pruner, epochs))
    ended = {}
    for name, curve in curves.items():
        trial = study.ask()
        referee = Referee(trial, pruner, "metric")
        epoch = 0
        for epoch in range(1, len(curve) + 1):
            if epoch < len(curve) and referee.is_behind(dict(enumerate(curve[:epoch], 1))):
                study.tell(trial, state=TrialState.PRUNED)
                break
        else:
            study.tell(trial, curve[-1])
        ended[name] = epoch
    return study, ended


#: Of each, the best epoch so far counts, against the median of finished runs at the same epoch.
CURVES = {
    "first": [0.5, 0.6, 0.7, 0.8],
    "second": [0.4, 0.5, 0.6, 0.7],
    # Medians of the two before: .45, .55, .65. Two runs are not enough to end one.
    "third": [0.1, 0.2, 0.3, 0.4],
    # Medians of three: .4, .5, .6. Never below.
    "equal": [0.4, 0.5, 0.6, 0.6],
    # Medians of .5 .4 .1 .4: .4; then .6 .5 .2 .5: .5.
    "ends after two": [0.4, 0.45, 0.9, 0.9],
    # It ended, so the medians stay as they were.
    "ends after one": [0.39, 0.9, 0.9, 0.9],
    # Its best epoch stays .55: above .4 and .5, below .65 = the median of .7 .6 .3 .6.
    "falls back": [0.55, 0.1, 0.1, 0.9],
    "last": [0.9, 0.9, 0.9, 0.9],
}


def test_the_median_ends_the_runs_that_are_below_it_by_hand():
    _, ended = study_of(CURVES, Pruner(name="median", min_finished=3))
    assert ended == {
        **{"first": 4, "second": 4, "third": 4, "equal": 4},
        **{"ends after two": 2, "ends after one": 1, "falls back": 3, "last": 4},
    }


def test_a_loss_is_compared_the_other_way_round():
    losses = {name: [1 - value for value in curve] for name, curve in CURVES.items()}
    _, ended = study_of(losses, Pruner(name="median", min_finished=3), "minimize")
    assert (ended["ends after two"], ended["ends after one"], ended["last"]) == (2, 1, 4)


def test_no_run_ends_during_the_warm_up():
    _, ended = study_of(CURVES, Pruner(name="median", warmup_epochs=2, min_finished=3))
    assert min(ended.values()) == 3
    assert ended["ends after one"] == 4
    assert ended["falls back"] == 3


def literal_halving(curves: dict[str, list[float]], first: int, factor: int, spared: int) -> dict[str, int]:
    """Successive halving, from its description: rung k is at epoch first·factor^k; a run goes on if it is in the best
    1/factor of the values of its rung so far, its own included, and always if it is the best of them."""
    rungs: dict[int, list[float]] = {}
    ended, finished = {}, 0
    for name, curve in curves.items():
        ended[name] = len(curve)
        for epoch in range(1, len(curve)):
            rung = round(math.log(epoch / first, factor)) if epoch >= first else -1
            if rung < 0 or epoch != first * factor**rung:
                continue
            values = rungs.setdefault(epoch, [])
            values.append(curve[epoch - 1])
            best = sorted(values, reverse=True)[: max(1, len(values) // factor)]
            if curve[epoch - 1] < best[-1] and finished >= spared:
                ended[name] = epoch
                break
        finished += ended[name] == len(curve)
    return ended


@pytest.mark.parametrize(("warmup", "spared"), [(0, 1), (0, 4), (1, 2)])
def test_halving_keeps_the_best_quarter_of_each_rung(warmup, spared):
    rng = random.Random(0)
    curves = {str(number): [rng.random() for _ in range(20)] for number in range(40)}
    pruner = Pruner(name="halving", warmup_epochs=warmup, min_finished=spared)
    _, ended = study_of(curves, pruner)
    assert ended == literal_halving(curves, warmup + 1, 4, spared)
    assert statistics.mean(ended.values()) < 12


def test_hyperband_ends_runs_at_the_rungs_of_its_brackets():
    rng = random.Random(0)
    curves = {str(number): [rng.random() for _ in range(9)] for number in range(60)}
    _, ended = study_of(curves, Pruner(name="hyperband", min_finished=2))
    # Brackets begin at 1, 3 and 9 epochs; at 9 a run is finished.
    assert set(ended.values()) == {1, 3, 9}


def test_epochs_before_an_interruption_are_reported_once_and_the_last_one_decides():
    pruner = Pruner(name="median", min_finished=1)
    study, _ = study_of({"first": [0.5, 0.6, 0.7, 0.8]}, pruner)
    referee = Referee(trial := study.ask(), pruner, "metric")
    # Epoch 1 was below the median of then; what counts is that epoch 2 is not.
    assert not referee.is_behind({1: 0.1, 2: 0.65})
    assert not referee.is_behind({1: 0.1, 2: 0.65})
    assert referee.is_behind({1: 0.1, 2: 0.65, 3: 0.2})
    assert study.trials[trial.number].intermediate_values == {1: 0.1, 2: 0.65, 3: 0.2}


@pytest.fixture
def run(tmp_path) -> Any:
    return train_quietly(tiny_recipe("training.epochs=2"), tmp_path)


@pytest.mark.parametrize(("measure", "name"), [("loss", "loss"), ("metric", "accuracy"), ("grid", "accuracy")])
def test_runs_are_compared_by_the_last_layer_after_each_epoch(run, measure, name):
    history = run.read_table("history")
    rows = history[(history["split"] == "validation") & (history["layer"] == 3) & (history["name"] == name)]
    assert pruning.epoch_values(run, measure) == dict(zip([1, 2], rows["value"], strict=True))


def test_a_run_that_was_not_begun_has_no_epochs(run):
    other = run.path.parent / "other"
    assert pruning.epoch_values(type(run)(other, run.recipe), "loss") == {}


def test_a_run_is_told_why_it_ends(run):
    study, _ = study_of({"better": [0.99, 0.99, 0.99]}, pruner := Pruner(name="median", min_finished=1))
    after_epoch: Callable[[Any], None] = Referee(study.ask(), pruner, "metric").after_epoch
    with pytest.raises(TrainingPrunedError, match=r"pruned by a sweep after epoch 2 of 2 \(median, validation metric"):
        after_epoch(run)
