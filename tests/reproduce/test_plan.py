from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cudt.reproduce import evaluation, generated, plan, reckon, scale
from cudt.reproduce.plan import Plan, Row
from cudt.sweep import cost
from cudt.sweep.conduct import Options
from tests.conftest import train_quietly
from tests.reproduce.scales import listed, scale_of, write_search
from tests.sweep.searches import seeds


@pytest.fixture
def timed(monkeypatch) -> list[str]:
    """What is timed: each kind of cell takes ten seconds, and starting a worker one."""
    found: list[str] = []

    def estimate(recipe, *_) -> float:
        found.append(recipe.settings.objective)
        torch.set_num_threads(1)
        return 10.0

    monkeypatch.setattr(cost, "estimate", estimate)
    monkeypatch.setattr(plan, "_importing", lambda: 0.4)
    return found


def options(folder: Path, **more) -> Options:
    return Options(folder / "out", "cpu", **more)


def told(made: Plan) -> str:
    console = Console(file=StringIO(), width=120, markup=False, emoji=False)
    console.print(plan.table(made))
    console.print("\n".join(plan.lines(made)), soft_wrap=True)
    return re.sub(r" +", " ", console.file.getvalue())  # type: ignore[attr-defined]


def test_what_can_be_timed_is_and_evaluation_costs_as_much_an_operation(tmp_path, timed):
    loaded = scale_of(tmp_path)
    (row,) = plan.make(loaded, options(tmp_path)).rows
    (experiment,) = loaded.experiments
    recipes = [experiment.sweep.recipe({}, arm, {}) for arm in ("constrained", "erm")]
    training = sum(reckon.training(recipe, experiment.nominal, None) for recipe in recipes)
    # Recipes that differ in their objective are timed each.
    assert timed == ["constrained", "erm"]
    assert (row.cells, row.left, row.evaluations, row.evaluations_left) == (2, 2, 2, 2)
    # One worker is started for training and one for evaluating, and each of the four takes a second besides.
    assert row.overhead == 2 * 1.0 + 4 * 1.0
    assert row.seconds == pytest.approx(6 + 20 * (training + reckon.evaluation(experiment)) / training)


@pytest.mark.parametrize(("workers", "started"), [(1, 2), (2, 4), (8, 4)])
def test_no_more_workers_are_started_than_there_are_runs(tmp_path, timed, workers, started):
    (row,) = plan.make(scale_of(tmp_path), options(tmp_path, workers=workers)).rows
    assert row.overhead == started * 1.0 + 4 * 1.0


def test_importing_is_timed_in_a_process_of_its_own_and_not_waited_for_long(monkeypatch):
    assert plan._importing() > 0.3
    monkeypatch.setattr(plan, "_LONGEST_IMPORT", 0.05)
    assert 0.05 <= plan._importing() < 1


def test_cells_of_two_sweeps_that_cost_the_same_are_timed_once(tmp_path, timed):
    arms = {"erm": seeds(1, fixed={"objective": "erm"})}
    more = {"erm": seeds(2, fixed={"objective": "erm", "training.learning_rate": 0.01})}
    one, other = write_search(tmp_path, "one", arms=arms), write_search(tmp_path, "other", arms=more)
    made = plan.make(scale_of(tmp_path, listed(other), listed(one)), options(tmp_path))
    assert timed == ["erm"]
    # The cheapest first, wherever it stands in the file.
    assert [row.experiment.sweep.name for row in made.rows] == ["one", "other"]


def test_without_the_gpu_that_a_scale_wants_it_is_reckoned(tmp_path, timed):
    (row,) = plan.make(scale_of(tmp_path, needs_gpu=True), options(tmp_path)).rows
    assert (row.seconds, row.untimed, timed) == (None, "no GPU", [])
    assert row.reckoned(scale_of(tmp_path).scale.throughput) == row.operations / 1e4 + row.overhead


def test_timing_ends_where_patience_does(tmp_path, timed, monkeypatch):
    monkeypatch.setattr(plan, "_PATIENCE", -1.0)
    (row,) = plan.make(scale_of(tmp_path), options(tmp_path)).rows
    assert row.untimed.startswith("timing ended")
    assert not timed


def test_threads_are_as_before(tmp_path, timed):
    torch.set_num_threads(2)
    plan.make(scale_of(tmp_path), options(tmp_path))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_what_is_missing_is_told_once_with_how_to_get_it_and_nothing_is_written(tmp_path, timed):
    other = write_search(tmp_path, "other", recipe="imdb-ut", fixed=None)
    third = write_search(tmp_path, "third", recipe="imdb-ut", fixed={"training.epochs": 4})
    made = plan.make(
        scale_of(tmp_path, listed(third), listed(other), listed(write_search(tmp_path))),
        options(tmp_path, data_root=tmp_path, workers=2),
    )
    text = told(made)
    assert "1 pair · reviews-ut 0/2 0/2 31.8 s" in text
    assert text.count("for 2-3: data set 'stanfordnlp/imdb'") == 1
    assert text.count("for 2-3: model 'distilbert/distilbert-base-uncased'") == 1
    assert "6 runs to train and 6 to evaluate; about 16.3 s on this machine with 2 workers, report included" in text
    assert "report included; about " in text
    assert "reckoned where it could not be timed (missing): 6 · multiplications" in text
    assert "at 1e-08 TFLOP/s (a slow one)" in text
    assert not (tmp_path / "out").exists()


def test_what_the_command_makes_for_itself_is_not_missing(tmp_path, timed):
    (row,) = plan.make(scale_of(tmp_path, listed("smoke-llama", generated=True)), options(tmp_path)).rows
    assert (row.missing, row.untimed) == ([], "its data are not made yet")


def test_runs_that_are_there_cost_nothing_and_evaluations_go_by_what_the_sweep_spent(tmp_path, timed, monkeypatch):
    loaded = scale_of(tmp_path)
    sweep = loaded.experiments[0].sweep
    for arm in ("constrained", "erm"):
        train_quietly(sweep.recipe({}, arm, {}), tmp_path / "out")
    monkeypatch.setattr(evaluation, "spent", lambda *_: (6.0, 3.0))
    (row,) = plan.make(loaded, options(tmp_path)).rows
    assert (row.left, row.evaluations_left) == (0, 2)
    assert row.seconds == 2 * reckon.evaluation(loaded.experiments[0]) + 1.0 + 2 * 1.0
    assert not timed


def test_a_plan_of_what_is_done_says_so(tmp_path, timed):
    made = plan.make(scale_of(tmp_path), options(tmp_path))
    done = Plan([replace(made.rows[0], left=0, evaluations_left=0, seconds=0.0)], made.throughput, 1)
    assert "2/2 2/2 done" in told(done)
    assert "0 runs to train and 0 to evaluate\n" in told(done)


def test_completions_that_lack_their_file_are_marked_apart(tmp_path, timed):
    generated.make(tmp_path)
    asked = {"instructions": "eval.json", "get": "ask", "gammas": [0.0]}
    loaded = scale_of(tmp_path, listed("smoke-llama", completions=asked))
    made = plan.make(loaded, options(tmp_path, data_root=tmp_path))
    (row,) = made.rows
    assert (row.missing, row.untimed) == ([], "")
    assert row.unanswerable == [f"completions: no file {tmp_path}/eval.json; ask"]
    text = told(made)
    assert re.search(r"0/2 0/2 [\d.]+ s † \n", text)
    assert f"† completions alone are left out, for what is missing:\n for 1: {row.unanswerable[0]}\n" in text
    assert "*" not in text
    # What is left out is not paid for.
    (tmp_path / "eval.json").write_text("[]")
    (with_them,) = plan.make(loaded, options(tmp_path, data_root=tmp_path)).rows
    assert with_them.operations > row.operations


@pytest.mark.parametrize(
    ("seconds", "unit", "text"),
    [
        (22.0, "h", "22 s"),
        (246.0, "GPU-h", "4.1 GPU-min"),
        (360.0, "GPU-h", "0.1 GPU-h"),
        (4_248_000.0, "GPU-h", "1,180 GPU-h"),
        (90.0, "hours of a core", "0.025 hours of a core"),
    ],
)
def test_small_amounts_are_told_in_minutes_and_seconds(seconds, unit, text):
    assert plan._amount(seconds, unit) == text


@pytest.mark.parametrize("name", scale.names())
def test_an_experiment_takes_two_lines_of_a_narrow_terminal(name):
    loaded = scale.load(name)
    rows = [
        Row(one, 240, 240, 48, 48, ["data"], [], operations=0.0, overhead=468.0, seconds=None, untimed="missing")
        for one in loaded.experiments
    ]
    console = Console(file=StringIO(), width=80)
    console.print(plan.table(Plan(rows, loaded.scale.throughput, 1)))
    assert len(console.file.getvalue().splitlines()) == 1 + 2 * len(rows)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("numbers", "text"), [([1], "1"), ([1, 2, 3], "1-3"), ([1, 3, 4, 7], "1, 3-4, 7")])
def test_numbers_of_experiments_are_told_as_ranges(numbers, text):
    assert plan._ranges(numbers) == text
