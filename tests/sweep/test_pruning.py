"""Which runs are ended early: by hand for the median, literally for successive halving."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.trial import TrialState

from cudt.runs.run import open_run
from cudt.sweep import definition, plan, pruning, results
from cudt.sweep.pruning import Referee
from cudt.sweep.run_sweep import SweepOptions
from cudt.sweep.search import Pruner
from cudt.sweep.storage import own_storage
from tests.conftest import tiny_recipe, train_quietly
from tests.sweep.machines import machines
from tests.sweep.planted import CURVES
from tests.sweep.searches import FIXED, grid, seeds, sweep_of, write_search


def study_of(
    curves: dict[Any, list[float]], pruner: Pruner, direction: Any = "maximize"
) -> tuple[Any, dict[Any, int]]:
    """Run curves one after another; their study, and after how many epochs each ended."""
    study = optuna.create_study(
        direction=direction, pruner=pruning.build(pruner, max(map(len, curves.values())))
    )
    ended = {}
    for name, curve in curves.items():
        trial = study.ask()
        referee = referee_of(trial, pruner)
        epoch = 0
        for epoch in range(1, len(curve) + 1):
            if epoch < len(curve) and referee.is_behind(dict(enumerate(curve[:epoch], 1))):
                study.tell(trial, state=TrialState.PRUNED)
                break
        else:
            referee.is_behind(dict(enumerate(curve, 1)))
            study.tell(trial, curve[-1])
        ended[name] = epoch
    return study, ended


def referee_of(trial: optuna.Trial, pruner: Pruner) -> Referee:
    """The referee of a trial without a sweep."""
    queue: Any = SimpleNamespace(study=trial.study, storage=trial.study._storage)
    running: Any = SimpleNamespace(trial_id=trial._trial_id)
    return Referee(queue, running, pruner, "metric")


#: Of each, the best epoch so far counts, against the median of finished runs at the same epoch. The
#: first three finish (two are not enough to end one), and 0.2 is never below their medians .4 .5
#: .6. Then the medians are - of .5 .4 .1 .4 after one epoch: .4, so 0.3 ends; - of .6 .5 .2 .5
#: after two: .5, so 0.25 ends; - of .7 .6 .3 .6 after three: .6, so 0.35 ends: its best epoch stays
#: .55.
ENDED = {0.05: 4, 0.1: 4, 0.15: 4, 0.2: 4, 0.25: 2, 0.3: 1, 0.35: 3, 0.4: 4}
MEDIAN = Pruner(name="median", min_finished=3)
FOUR_EPOCHS = {**FIXED, "training.epochs": 4}


def test_the_median_ends_the_runs_that_are_below_it_by_hand():
    _, ended = study_of(CURVES, MEDIAN)
    assert ended == ENDED


def test_a_loss_is_compared_the_other_way_round():
    losses = {name: [1 - value for value in curve] for name, curve in CURVES.items()}
    _, ended = study_of(losses, MEDIAN, "minimize")
    # 1 − .55 and 1 − .6 are rounded, which does not matter to these.
    assert {name: ended[name] for name in (0.25, 0.3, 0.4)} == {0.25: 2, 0.3: 1, 0.4: 4}


def literal_halving(
    curves: dict[Any, list[float]], first: int, factor: int, spared: int
) -> dict[str, int]:
    """Successive halving, from its description: rung k is at epoch first·factor^k; a run goes on if
    it is in the best 1/factor of the values of its rung so far, its own included, and always if it
    is the best of them."""
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


@pytest.fixture
def run(tmp_path) -> Any:
    return train_quietly(tiny_recipe("training.epochs=2"), tmp_path)


@pytest.mark.parametrize(
    ("measure", "name"), [("loss", "loss"), ("metric", "accuracy"), ("grid", "accuracy")]
)
def test_runs_are_compared_by_the_last_layer_after_each_epoch(run, measure, name):
    history = run.read_table("history")
    rows = history[
        (history["split"] == "validation") & (history["layer"] == 3) & (history["name"] == name)
    ]
    assert pruning.epoch_values(run, measure) == dict(zip([1, 2], rows["value"], strict=True))


# ---------------------------------------------------------------- in a sweep


def arms(**more: Any) -> dict[str, Any]:
    pruner = {"name": "median", "min_finished": 3}
    return {"pruned": grid({"descent.alpha": list(CURVES), **more}, pruner=pruner)}


def test_a_sweep_of_one_worker_ends_the_same_runs_and_none_of_them_is_the_best(tmp_path):
    sweep = sweep_of(tmp_path, fixed=FOUR_EPOCHS, arms=arms())
    with machines(sweep, own_storage(tmp_path), tmp_path / "one", "curved", pace=0.0) as made:
        made.begin()
        made.join("alone")
        assert made.wait() == {"alone": 0}
        table = made.table()
    ended = {alpha: "finished" if epochs == 4 else "pruned" for alpha, epochs in ENDED.items()}
    assert dict(zip(table["descent.alpha"], table["state"], strict=True)) == ended
    pruned = table[table["state"] == "pruned"]
    assert pruned["reason"].tolist() == [
        f"after epoch {ENDED[alpha]}" for alpha in pruned["descent.alpha"]
    ]
    assert pruned["score"].isna().all()
    (best,) = results.best_of_arms(table, "maximize", prunes=True).to_dict("records")
    assert (best["runs"], best["failed"], best["pruned"]) == (5, 0, 3)
    # α = 0.25 would have reached .99.
    assert (best["descent.alpha"], best["score"]) == (0.4, 0.85)


def curve_of(folder: Path) -> list[float]:
    return list(pruning.epoch_values(open_run(folder), "metric").values())


def test_a_pruned_run_is_counted_in_updates_and_train_resumes_it(no_processes, command, tmp_path):
    # The first three finish; the last one hardly changes its weights.
    rates = {"training.learning_rate": [1e-2, 2e-2, 3e-2, 1e-9]}
    own = grid(rates, pruner="median", fixed={"objective": "erm"})
    other = seeds(4, fixed={"objective": "erm"})
    path = write_search(
        tmp_path,
        fixed={**FOUR_EPOCHS, "training.log_every": 1},
        arms={"pruned": own, "whole": other},
    )
    code, output, error = command("sweep", "--search", path, "--out", "out")
    assert (code, error) == (0, "")
    assert "warning: only pruned prunes: budgets count runs" in output
    (folder,) = (tmp_path / "out").glob("sweeps/reviews-ut/*")
    table, best = (
        pd.read_csv(folder / "trials_wide.csv"),
        pd.read_csv(folder / "best.csv").set_index("arm"),
    )
    (ended,) = table[table["state"] == "pruned"].to_dict("records")
    others = table[(table["arm"] == "pruned") & (table["state"] == "finished")]["run"]
    curves = np.array([curve_of(tmp_path / "out" / run) for run in others])
    own_curve = curve_of(tmp_path / "out" / ended["run"])
    is_behind = np.maximum.accumulate(own_curve) < np.median(curves, axis=0)[: len(own_curve)]
    assert is_behind.tolist() == [False] * (len(own_curve) - 1) + [True]
    # Three updates an epoch.
    assert (ended["training.learning_rate"], ended["updates"]) == (1e-9, 3 * len(own_curve))
    assert best["pruned"].to_dict() == {"pruned": 1, "whole": 0}
    assert best["spent_updates"].to_dict() == {"pruned": 3 * 12 + ended["updates"], "whole": 4 * 12}
    assert f"after fewer updates: the arms spent pruned {36 + ended['updates']}, whole 48" in output
    assert json.loads((folder / "sweep.json").read_text())["pruned"] == 1
    run = open_run(tmp_path / "out" / ended["run"])
    assert (run.info().status, run.info().reason) == ("interrupted", ended["reason"])
    assert ended["reason"].startswith(
        f"pruned by a sweep after epoch {len(own_curve)} of 4 (median, validation metric"
    )
    # The sweep is done; nothing is begun again.
    options = SweepOptions(tmp_path / "out", "cpu")
    assert [cell.state for cell in plan.cells(definition.load(str(path)), options)].count(
        "pruned"
    ) == 1
    assert command("sweep", "--search", path, "--out", "out")[0] == 0
    assert run.info().status == "interrupted"
    train_quietly(run.recipe, tmp_path / "out")
    assert run.info().status == "finished"
