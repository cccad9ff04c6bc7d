"""Validation within epochs, the best weights, and early stopping."""

from __future__ import annotations

import math
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cudt.config.recipe import NamedRecipe
from cudt.config.schema import Training
from cudt.runs.run import Run, run_for
from cudt.training import launch
from cudt.training.checkpoint import Checkpoints
from cudt.training.selection import Selection, early_stop, is_better, rank_of
from cudt.training.state import TrainingState
from cudt.training.trainer import Trainer
from cudt.utils.errors import TrainingInterruptedError
from tests.conftest import quiet, tiny_recipe, train_quietly
from tests.processes import ending, in_child
from tests.training.test_stopping import RESULTS, in_new_process, what_is_left

# Three updates an epoch: validation after updates 2, 3, 5, 6, 8 and 9.
WITHIN = ("training.epochs=3", "descent.alpha=0.3", "training.validate_every=2")


def validations(run: Run) -> list[tuple[int, int]]:
    """The updates and epochs of the validations in history.csv, in its order."""
    rows = run.read_table("history")
    rows = rows[(rows["split"] == "validation") & (rows["name"] == "loss") & (rows["layer"] == 1)]
    return [
        (int(step), int(epoch)) for step, epoch in zip(rows["step"], rows["epoch"], strict=True)
    ]


def ranked(patch: pytest.MonkeyPatch, *ranks: float) -> None:
    """Let validations have these ranks, by the order of their updates; a repeated one has the same
    again."""
    seen: dict[int, float] = {}
    validate = Trainer._validate_and_select

    def and_rank(trainer: Trainer) -> None:
        rank = seen.setdefault(trainer.state.step, ranks[len(seen)])
        trainer.objective.rank = lambda measured: [rank]  # type: ignore[method-assign]
        validate(trainer)

    patch.setattr(Trainer, "_validate_and_select", and_rank)


# ---------------------------------------------------------------- the rules


def test_a_rank_counts_warm_up_and_nan_last():
    assert rank_of([0.3, math.nan], warming_up=False) == [0.0, 0.3, math.inf]
    assert not is_better(rank_of([0.1], warming_up=True), rank_of([0.9], warming_up=False))
    assert is_better(rank_of([0.9], warming_up=False), rank_of([0.1], warming_up=True))
    assert is_better([1.0, math.inf], None)
    # The first of two equal ones stays.
    assert not is_better([0.0, 0.5], [0.0, 0.5])


def test_validation_is_due_within_an_epoch_and_once_for_each_update():
    rules = Selection(Training(validate_every=3), updates_per_epoch=9)
    due = [
        step
        for step in range(10)
        if rules.is_due(TrainingState(step=step + 90, step_in_epoch=step))
    ]
    # The ninth ends the epoch, which has a validation of its own.
    assert due == [3, 6]
    assert not rules.is_due(TrainingState(step=93, step_in_epoch=3, validated_step=93))
    assert not Selection(Training(), 9).is_due(TrainingState(step=3, step_in_epoch=3))


def test_patience_counts_validations_in_a_row_after_warm_up():
    rules, state = Selection(Training(early_stopping=2), 10), TrainingState()
    expected = [
        (5.0, True, 0),
        (6.0, True, 0),
        (9.0, False, 0),
        (9.0, False, 1),
        (8.0, False, 0),
        (8.5, False, 1),
    ]
    for step, (rank, warming_up, since_best) in enumerate(expected, 1):
        state.step = step
        rules.note(state, rank_of([rank], warming_up=warming_up), warming_up=warming_up)
        assert (state.since_best, rules.is_over(state)) == (since_best, False)
    assert (state.best, state.best_step, state.validated_step) == ([0.0, 8.0], 5, 6)
    rules.note(state, rank_of([8.0], warming_up=False), warming_up=False)
    assert rules.is_over(state)
    assert not Selection(Training(), 10).is_over(state)


def test_training_that_runs_out_of_patience_at_its_last_update_did_not_stop_early():
    rules = Selection(Training(epochs=2, early_stopping=1), 3)
    last, before = TrainingState(1, 6, 3, since_best=1), TrainingState(1, 5, 2, since_best=1)
    for state in (last, before):
        rules.end_epoch(state)
        assert (state.epoch, state.step_in_epoch, rules.goes_on(state)) == (2, 0, False)
    assert early_stop(last) is None
    stopped = early_stop(before)
    assert stopped is not None
    assert (stopped.epoch, stopped.step, stopped.validations) == (2, 5, 1)


# ---------------------------------------------------------------- validation within epochs


def with_draws(patch: pytest.MonkeyPatch) -> None:
    """Let forward passes draw from torch's generator: in updates, as dropout does, and in
    validation."""
    sums, validate = Trainer._loss_sums, Trainer._validate
    patch.setattr(Trainer, "_loss_sums", lambda *given: sums(*given) * (0.5 + torch.rand(())))

    def and_draw(trainer: Trainer) -> Any:
        torch.rand(7)
        return validate(trainer)

    patch.setattr(Trainer, "_validate", and_draw)


def test_validating_does_not_change_training(tmp_path, monkeypatch):
    with_draws(monkeypatch)
    plain = (
        "training.epochs=2",
        "descent.alpha=0.3",
        "descent.resilience=slack",
        "descent.beta=1.0",
    )
    every = train_quietly(tiny_recipe(*plain, "training.validate_every=1"), tmp_path)
    never = train_quietly(tiny_recipe(*plain), tmp_path)
    assert validations(every) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]
    assert validations(never) == [(3, 1), (6, 2)]
    assert every.weights_file("last").read_bytes() == never.weights_file("last").read_bytes()
    kept = [
        [
            row
            for row in (run.path / "history.csv").read_text().splitlines()
            if ",validation," not in row
        ]
        for run in (every, never)
    ]
    assert kept[0] == kept[1]


def test_the_best_weights_may_be_those_within_an_epoch(tmp_path, monkeypatch):
    weights: dict[int, bytes] = {}
    save = Checkpoints.save_weights

    def and_keep(checkpoints: Checkpoints, which: Any, step: int) -> None:
        save(checkpoints, which, step)
        weights[step] = checkpoints.run.weights_file(which).read_bytes()

    monkeypatch.setattr(Checkpoints, "save_weights", and_keep)
    ranked(monkeypatch, 0.9, 0.8, 0.5, 0.7, 0.6, 0.55)
    run = train_quietly(tiny_recipe(*WITHIN), tmp_path)
    best = run.finished_info().best
    assert (best.epoch, best.step) == (2, 5)
    assert run.weights_file("best").read_bytes() == weights[5]
    assert run.weights_file("last").read_bytes() == weights[9] != weights[5]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopping_anywhere_and_resuming_equals_one_go_bit_for_bit(tmp_path, how):
    assert in_new_process(tmp_path / "whole", -1, signal.SIGINT, WITHIN) == 0
    # 2, 5 and 8 have a validation within the epoch: a signal comes before it.
    for stop_at in (2, 4, 5, 6, 8):
        assert in_new_process(tmp_path / "stopped", stop_at, how, WITHIN) == (
            1 if how == signal.SIGINT else -how
        )
    assert in_new_process(tmp_path / "stopped", -1, signal.SIGINT, WITHIN) == 0
    assert what_is_left(tmp_path / "stopped") == what_is_left(tmp_path / "whole")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_the_choice_of_the_best_weights_resumes_bit_for_bit(tmp_path, when):
    recipe = tiny_recipe(*WITHIN)
    save = Checkpoints.save_weights

    def train(out: Path, step: int) -> None:
        def die(checkpoints: Checkpoints, which: Any, at: int) -> None:
            if when == "after":
                save(checkpoints, which, at)
            if at == step:
                os.kill(os.getpid(), signal.SIGKILL)
            if when == "before":
                save(checkpoints, which, at)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "save_weights", die)
            launch.train(recipe, out, "cpu", None, quiet())

    assert ending(in_child(lambda: train(tmp_path / "whole", -1))) == 0
    best = run_for(recipe, tmp_path / "whole").finished_info().best.step
    assert best is not None
    for step in (2, best):
        assert ending(in_child(partial(train, tmp_path / "killed", step))) == -signal.SIGKILL
    assert ending(in_child(lambda: train(tmp_path / "killed", -1))) == 0
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


def interrupted_at(recipe: NamedRecipe, out: Path, step: int, patch: pytest.MonkeyPatch) -> None:
    log = Trainer._log_update

    def and_interrupt(trainer: Trainer, *arguments: Any) -> None:
        log(trainer, *arguments)
        if trainer.state.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    with patch.context() as inner:
        inner.setattr(Trainer, "_log_update", and_interrupt)
        with pytest.raises(TrainingInterruptedError):
            train_quietly(recipe, out)


# ---------------------------------------------------------------- early stopping

STOPPING = ("training.epochs=5", "training.early_stopping=2")


def test_training_stops_after_validations_that_are_no_better(tmp_path, monkeypatch):
    ranked(monkeypatch, 0.9, 0.5, 0.6, 0.5)
    run = train_quietly(tiny_recipe(*STOPPING), tmp_path)
    info = run.finished_info()
    assert validations(run) == [(3, 1), (6, 2), (9, 3), (12, 4)]
    assert info.stopped_early is not None
    assert (info.stopped_early.epoch, info.stopped_early.step, info.stopped_early.validations) == (
        4,
        12,
        2,
    )
    assert (info.best.epoch, info.best.step) == (2, 6)
    history = run.read_table("history")
    assert history[history["name"] == "validations_since_best"]["value"].tolist() == [0, 0, 1, 2]
    # It is finished, and stays as it is.
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}
    train_quietly(tiny_recipe(*STOPPING), tmp_path)
    assert before == {
        path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("select", ["best", "last"])
def test_an_epoch_that_training_stops_in_is_the_last_one(tmp_path, monkeypatch, select):
    ranked(monkeypatch, 0.9, 0.5, 0.6, 0.7)
    settings = (*WITHIN, "training.early_stopping=1", f"training.select={select}")
    run = train_quietly(tiny_recipe(*settings), tmp_path)
    info = run.finished_info()
    assert validations(run) == [(2, 1), (3, 1), (5, 2)]
    assert info.stopped_early is not None
    assert (info.stopped_early.epoch, info.stopped_early.step) == (2, 5)
    assert (info.best.epoch, info.best.step) == ((1, 3) if select == "best" else (2, 5))


@pytest.mark.parametrize("stop_at", [4, 5])
def test_an_interrupted_run_has_as_much_patience_left(tmp_path, monkeypatch, stop_at):
    """5 is the update whose validation exhausts patience: the checkpoint is written after it."""
    recipe = tiny_recipe(*WITHIN, "training.early_stopping=1")
    ranked(monkeypatch, 0.9, 0.5, 0.6, 0.7)
    whole = train_quietly(recipe, tmp_path / "whole")
    interrupted_at(recipe, tmp_path / "parts", stop_at, monkeypatch)
    parts = train_quietly(recipe, tmp_path / "parts")
    for name in RESULTS:
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes(), name
    assert parts.finished_info().stopped_early == whole.finished_info().stopped_early is not None
