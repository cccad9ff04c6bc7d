from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cudt.reproduce import cost, generated, plan, progress, scale
from cudt.reproduce.plan import PlannedExperiment, ReproductionPlan
from cudt.reproduce.progress import Progress
from cudt.reproduce.stored import ReproduceOptions
from cudt.sweep import cost as sweep_cost
from cudt.sweep import startup
from cudt.utils.progress import duration
from tests.conftest import train_quietly
from tests.reproduce.scales import COSTS, listed, scale_of, write_search
from tests.sweep.searches import seeds


@pytest.fixture
def timed(monkeypatch) -> list[str]:
    """What is timed: each kind of cell takes ten seconds, and starting a worker one."""
    found: list[str] = []

    def estimate(recipe, *_) -> float:
        found.append(recipe.settings.objective)
        torch.set_num_threads(1)
        return 10.0

    monkeypatch.setattr(sweep_cost, "estimate", estimate)
    monkeypatch.setattr(startup, "worker_seconds", lambda: 1.0)
    return found


def options(folder: Path, **more) -> ReproduceOptions:
    return ReproduceOptions(folder / "out", "cpu", **more)


def printed(made: ReproductionPlan) -> str:
    console = Console(file=StringIO(), width=120, markup=False, emoji=False)
    console.print(plan.table(made))
    console.print("\n".join(plan.lines(made)), soft_wrap=True)
    return re.sub(r" +", " ", console.file.getvalue())  # type: ignore[attr-defined]


def test_training_is_timed_and_evaluation_costs_as_much_per_operation(tmp_path, timed):
    loaded = scale_of(tmp_path)
    (row,) = plan.make(loaded, options(tmp_path)).rows
    (experiment,) = loaded.experiments
    recipes = [experiment.sweep.recipe({}, arm, {}) for arm in ("constrained", "erm")]
    training = sum(cost.training(recipe, experiment.nominal, None) for recipe in recipes)
    # Recipes with different objectives are timed separately.
    assert timed == ["constrained", "erm"]
    assert (row.cells, row.left, row.evaluations, row.evaluations_left) == (2, 2, 2, 2)
    # One worker is started, and each of the four trials has a second of overhead.
    assert row.overhead == 1.0 + 4 * 1.0
    assert row.seconds == pytest.approx(5 + 20 * (training + cost.evaluation(experiment)) / training)


@pytest.mark.parametrize(("workers", "started"), [(1, 1), (2, 2), (8, 4)])
def test_no_more_workers_are_started_than_there_are_trials(tmp_path, timed, workers, started):
    (row,) = plan.make(scale_of(tmp_path), options(tmp_path, workers=workers)).rows
    assert row.overhead == started * 1.0 + 4 * 1.0


def test_cells_of_two_sweeps_that_cost_the_same_are_timed_once(tmp_path, timed):
    arms = {"erm": seeds(1, fixed={"objective": "erm"})}
    more = {"erm": seeds(2, fixed={"objective": "erm", "training.learning_rate": 0.01})}
    one, other = write_search(tmp_path, "one", arms=arms), write_search(tmp_path, "other", arms=more)
    made = plan.make(scale_of(tmp_path, listed(other), listed(one)), options(tmp_path))
    assert timed == ["erm"]
    # The cheapest first, whatever the order in the file.
    assert [row.experiment.sweep.name for row in made.rows] == ["one", "other"]


def test_a_scale_for_gpus_is_estimated_without_one(tmp_path, timed):
    (row,) = plan.make(scale_of(tmp_path, needs_gpu=True), options(tmp_path)).rows
    assert (row.seconds, row.untimed, timed) == (None, "no GPU", [])
    assert row.estimated_seconds(scale_of(tmp_path).scale.throughput) == row.operations / 1e4 + row.overhead


def test_timing_stops_when_its_budget_is_spent(tmp_path, timed, monkeypatch):
    monkeypatch.setattr(plan, "_TIMING_BUDGET", -1.0)
    (row,) = plan.make(scale_of(tmp_path), options(tmp_path)).rows
    assert row.untimed.startswith("timing stopped")
    assert not timed


def test_the_number_of_threads_is_restored(tmp_path, timed):
    torch.set_num_threads(2)
    plan.make(scale_of(tmp_path), options(tmp_path))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_what_is_missing_is_listed_once_with_how_to_get_it_and_nothing_is_written(tmp_path, timed):
    other = write_search(tmp_path, "other", recipe="imdb-ut", fixed=None)
    third = write_search(tmp_path, "third", recipe="imdb-ut", fixed={"training.epochs": 4})
    made = plan.make(
        scale_of(tmp_path, listed(third), listed(other), listed(write_search(tmp_path))),
        options(tmp_path, data_root=tmp_path, workers=2),
    )
    text = printed(made)
    assert "1 pair · reviews-ut 0/2 0/2 29.8 s" in text
    assert text.count("for 2–3: dataset 'stanfordnlp/imdb'") == 1
    assert text.count("for 2–3: model 'distilbert/distilbert-base-uncased'") == 1
    # The rows are in one unit, the report among them, and add up to the total; the second and third are skipped.
    costs = [made.seconds_of(row) for row in made.rows]
    assert re.search(r"\n report 0.4 s \n", text)
    assert "6 runs to train and 6 to evaluate; about " in text
    total = sum(costs) + 0.4
    assert f"about {duration(total)} on this machine, {duration(total / 2)} with 2 workers; " in text
    assert f"with 2 workers; {duration(costs[1] + costs[2])} of it for what is skipped\n" in text
    assert "estimated, because not timed (missing): 6 · multiplications" in text
    # The others run at the throughput that the first had.
    first, second, _ = made.rows
    assert first.seconds is not None
    per_operation = (first.seconds - first.overhead) / first.operations
    assert costs[1] == pytest.approx(second.operations * per_operation + second.overhead)
    assert "TFLOP/s (this machine, with the timed experiments)" in text
    assert not (tmp_path / "out").exists()


def test_where_nothing_is_timed_every_row_and_the_total_are_in_the_unit_of_the_scale(tmp_path, timed):
    made = plan.make(scale_of(tmp_path, needs_gpu=True), options(tmp_path, workers=2))
    (row,) = made.rows
    amount = plan._amount(row.estimated_seconds(made.throughput), made.throughput.unit)
    text = printed(made)
    assert f"0/2 0/2 {amount} \n" in text
    assert f"2 runs to train and 2 to evaluate; about {amount} by estimate\n" in text
    assert "at 1e-08 TFLOP/s (a slow one)" in text


def test_an_experiment_that_evaluates_nothing_costs_its_training(tmp_path, timed):
    """Without evaluations, a plan costs less by what they cost."""
    rows = {}
    for which in ("all", "none"):
        loaded = scale_of(tmp_path, listed("smoke-llama", generated=True, evaluate=which))
        (rows[which],) = plan.make(loaded, options(tmp_path)).rows
    assert (rows["none"].evaluations, rows["none"].evaluations_left) == (0, 0)
    evaluated = cost.evaluation(rows["all"].experiment)
    assert rows["none"].operations == pytest.approx(rows["all"].operations - evaluated)
    assert rows["none"].operations > 0


def test_generated_data_are_not_missing(tmp_path, timed):
    (row,) = plan.make(scale_of(tmp_path, listed("smoke-llama", generated=True)), options(tmp_path)).rows
    assert (row.missing, row.untimed) == ([], "data not generated yet")


def test_what_was_measured_is_used_and_nothing_is_timed(tmp_path, timed, monkeypatch):
    loaded = scale_of(tmp_path)
    # Half a second for each operation, on whatever machine.
    monkeypatch.setattr(progress, "of", lambda *_: Progress(0, 6.0, 12.0))
    (row,) = plan.make(loaded, options(tmp_path)).rows
    assert row.seconds == pytest.approx(0.5 * row.operations + row.overhead)
    assert not timed


def test_finished_runs_cost_nothing(tmp_path, timed):
    loaded = scale_of(tmp_path)
    sweep = loaded.experiments[0].sweep
    for arm in ("constrained", "erm"):
        train_quietly(sweep.recipe({}, arm, {}), tmp_path / "out")
    (row,) = plan.make(loaded, options(tmp_path)).rows
    assert (row.left, row.evaluations_left, row.untimed) == (0, 2, "nothing left to time")
    assert row.operations == cost.evaluation(loaded.experiments[0])
    assert not timed


@pytest.mark.parametrize(
    ("is_running", "others", "text"),
    [
        (False, [], "on this machine, {} with 2 workers\n"),
        (False, ["here", "there", "there"], "on this machine, {} with 5 workers on 3 hosts\n"),
        (True, ["here", "there", "there"], "on this machine, {} with 3 workers on 2 hosts\n"),
    ],
)
def test_the_cost_is_shared_by_all_workers_that_are_alive(is_running, others, text, tmp_path, timed, monkeypatch):
    monkeypatch.setattr(progress, "alive", lambda *_: [{"host": host} for host in others])
    made = plan.make(scale_of(tmp_path), options(tmp_path, workers=2), is_running=is_running)
    total = sum(map(made.seconds_of, made.rows)) + made.report
    n_workers = int(re.findall(r"with (\d)", text)[0])
    assert text.format(duration(total / n_workers)) in printed(made)


def test_workers_order_experiments_by_the_plan(tmp_path, timed):
    one, other = write_search(tmp_path, "one", arms={"erm": seeds(1)}), write_search(tmp_path, "other")
    loaded = scale_of(tmp_path, listed(other), listed(one))
    made = plan.make(loaded, options(tmp_path))
    turns = made.turns(loaded)
    assert [turn.experiment for turn in turns] == [1, 0]
    # Two trials and four: a run and its evaluation each.
    assert [turn.seconds for turn in turns] == [
        pytest.approx(made.seconds_of(row) / count) for row, count in zip(made.rows, (2, 4), strict=True)
    ]


def test_a_plan_of_what_is_done_says_so(tmp_path, timed):
    made = plan.make(scale_of(tmp_path), options(tmp_path))
    done = ReproductionPlan([replace(made.rows[0], left=0, evaluations_left=0, seconds=0.0)], made.throughput, 1)
    assert "2/2 2/2 done" in printed(done)
    assert "0 runs to train and 0 to evaluate\n" in printed(done)


def test_other_data_that_are_missing_are_marked(tmp_path, timed):
    loaded = scale_of(tmp_path, listed("smoke-depth", on=["avenue"]), costs={"smoke-video": COSTS})
    made = plan.make(loaded, options(tmp_path, data_root=tmp_path))
    (row,) = made.rows
    assert (row.missing, row.unanswerable) == ([], [])
    assert row.untestable[0].startswith(f"on avenue: dataset Avenue: no folder training_videos in {tmp_path}/avenue")
    assert f"‡ missing; only evaluations on it are skipped:\n for 1: {row.untestable[0]}\n" in printed(made)


def test_completions_without_their_file_are_marked(tmp_path, timed):
    generated.make(tmp_path)
    asked = {"instructions": "eval.json", "get": "ask", "gammas": [0.0]}
    loaded = scale_of(tmp_path, listed("smoke-llama", completions=asked))
    made = plan.make(loaded, options(tmp_path, data_root=tmp_path))
    (row,) = made.rows
    assert (row.missing, row.untimed) == ([], "")
    assert row.unanswerable == [f"completions: file {tmp_path}/eval.json does not exist; ask"]
    text = printed(made)
    assert re.search(r"0/2 0/2 [\d.]+ s † \n", text)
    assert f"† missing; only the completions are skipped:\n for 1: {row.unanswerable[0]}\n" in text
    assert "*" not in text
    # What is skipped costs nothing.
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
def test_small_amounts_are_reported_in_minutes_and_seconds(seconds, unit, text):
    assert plan._amount(seconds, unit) == text


@pytest.mark.parametrize("name", scale.names())
def test_an_experiment_takes_two_lines_of_a_narrow_terminal(name):
    loaded = scale.load(name)
    rows = [
        PlannedExperiment(
            one, 240, 240, 48, 48, ["data"], [], [], operations=0.0, overhead=468.0, seconds=None, untimed="missing"
        )
        for one in loaded.experiments
    ]
    console = Console(file=StringIO(), width=80)
    console.print(plan.table(ReproductionPlan(rows, loaded.scale.throughput, 1)))
    assert len(console.file.getvalue().splitlines()) == 1 + 2 * len(rows)  # type: ignore[attr-defined]
