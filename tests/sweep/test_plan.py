from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from cudt.runs.find import run_for
from cudt.runs.info import RunInfo, Status
from cudt.sweep import cost, plan, startup
from cudt.sweep.definition import Sweep
from cudt.sweep.plan import PlannedCell, SweepPlan
from cudt.sweep.run_sweep import SweepOptions, open_studies
from cudt.sweep.storage import own_storage
from tests.sweep.searches import ALPHAS, FIXED, drawn, fail, finish, grid, seeds, sweep_of, write_search

TWO = {"constrained": grid(ALPHAS), "erm": seeds(3, fixed={"objective": "erm"})}


@pytest.fixture(autouse=True)
def timed(monkeypatch) -> list[str]:
    """Runs of the constrained cost ten seconds and others two, a worker costs three; what was timed is noted."""
    noted: list[str] = []

    def estimate(recipe, gammas, where, data_root) -> float:
        noted.append(recipe.settings.objective)
        return 10.0 if recipe.settings.objective == "constrained" else 2.0

    monkeypatch.setattr(cost, "estimate", estimate)
    monkeypatch.setattr(startup, "worker_seconds", lambda: 3.0)
    return noted


def options(out: Path, **more) -> SweepOptions:
    return SweepOptions(out, "cpu", **more)


def cells(made: SweepPlan) -> list[tuple[str, str, float | None]]:
    return [(cell.name, cell.state, cell.seconds) for cell in made.cells]


def begin(sweep: Sweep, out: Path, status: Status, **parameters) -> None:
    """A run folder as a cell leaves it."""
    arm = next(iter(sweep.search.arms))
    searched = {key.replace("__", "."): value for key, value in parameters.items()}
    run = run_for(sweep.recipe(sweep.settings[0], arm, searched), out)
    run.path.mkdir(parents=True)
    run.update_info(RunInfo(status=status))


def everything_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_every_cell_is_listed_with_what_it_would_cost(tmp_path, timed):
    made = plan.make(sweep_of(tmp_path, arms=TWO), options(tmp_path / "out"))
    assert cells(made) == [
        ("constrained: alpha=0.1", "to do", 10.0),
        ("constrained: alpha=0.2", "to do", 10.0),
        ("constrained: alpha=0.3", "to do", 10.0),
        ("erm: seed=0", "to do", 2.0),
        ("erm: seed=1", "to do", 2.0),
        ("erm: seed=2", "to do", 2.0),
    ]
    # Cells that cost the same are timed once.
    assert timed == ["constrained", "erm"]
    # Six runs of 36 seconds, a worker, and a second of overhead for each run.
    assert made.startup == 9.0
    assert made.summary() == "6 trials, 0 done, 6 to do; about 45.0 s on this machine"


def test_workers_share_the_time(tmp_path):
    made = plan.make(sweep_of(tmp_path, arms=TWO), options(tmp_path / "out", workers=3))
    assert made.summary() == "6 trials, 0 done, 6 to do; about 51.0 s on this machine, 17.0 s with 3 workers"


@pytest.mark.parametrize(
    "arms",
    [TWO, {"drawn": drawn("tpe", 3)}, {"drawn": drawn("random", 3)}],
    ids=["listed", "tpe", "random"],
)
def test_a_plan_leaves_nothing_behind(arms, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = sweep_of(tmp_path, arms=arms)
    before = everything_below(tmp_path)
    plan.make(sweep, options(Path("out")))
    assert everything_below(tmp_path) == before


def test_a_plan_leaves_nothing_behind_in_a_storage_of_ones_own(tmp_path):
    sweep = sweep_of(tmp_path, arms=TWO)
    before = everything_below(tmp_path)
    plan.make(sweep, options(tmp_path / "out", storage=f"sqlite:///{tmp_path / 'trials.db'}"))
    assert everything_below(tmp_path) == before


def test_the_states_of_cells_are_reported_and_what_is_finished_costs_nothing(tmp_path, timed):
    arms = {"constrained": grid({"descent.alpha": [0.1, 0.2, 0.3, 0.4]})}
    sweep, out = sweep_of(tmp_path, arms=arms), tmp_path / "out"
    begin(sweep, out, "finished", descent__alpha=0.1)
    begin(sweep, out, "interrupted", descent__alpha=0.2)
    sweep.folder(out).mkdir(parents=True)
    (study,) = open_studies(sweep, own_storage(sweep.folder(out)))
    *_, third = (study.next() for _ in range(3))
    assert third is not None
    fail(study, third, "it was too steep", {})
    before = [path.read_bytes() for path in everything_below(out) if path.is_file()]
    made = plan.make(sweep, options(out))
    assert [(cell.state, cell.seconds) for cell in made.cells] == [
        ("finished", 0.0),
        ("started", 10.0),
        ("failed", 0.0),
        ("to do", 10.0),
    ]
    assert [cell.name for cell in made.to_do] == ["constrained: alpha=0.2", "constrained: alpha=0.4"]
    assert made.summary() == "4 trials, 2 done, 2 to do; about 25.0 s on this machine"
    assert [path.read_bytes() for path in everything_below(out) if path.is_file()] == before


def test_a_sweep_that_is_done_needs_no_timing(tmp_path, timed):
    sweep, out = sweep_of(tmp_path), tmp_path / "out"
    for alpha in (0.1, 0.2, 0.3):
        begin(sweep, out, "finished", descent__alpha=alpha)
    assert plan.make(sweep, options(out)).summary() == "3 trials, 3 done, 0 to do; about 0.0 s on this machine"
    assert timed == []


def test_what_chance_will_draw_is_what_the_plan_says(tmp_path):
    sweep = sweep_of(tmp_path, arms={"drawn": drawn("random", 4)})
    names = [cell.name for cell in plan.make(sweep, options(tmp_path / "out")).cells]
    (study,) = open_studies(sweep, None)
    assert names == [sweep.describe({}, "drawn", trial.parameters) for trial in iter(study.next, None)]
    assert len(set(names)) == 4


def test_what_results_will_choose_is_to_be_drawn(tmp_path):
    sweep, out = sweep_of(tmp_path, arms={"drawn": drawn("tpe", 3)}), tmp_path / "out"
    to_come = "drawn: to be drawn by tpe"
    assert cells(plan.make(sweep, options(out))) == [(to_come, "to do", 10.0)] * 3
    sweep.folder(out).mkdir(parents=True)
    (study,) = open_studies(sweep, own_storage(sweep.folder(out)))
    trial = study.next()
    assert trial is not None
    begin(sweep, out, "finished", **{key.replace(".", "__"): value for key, value in trial.parameters.items()})
    finish(study, trial, 0.5, {})
    known = sweep.describe({}, "drawn", trial.parameters)
    assert cells(plan.make(sweep, options(out))) == [(known, "finished", 0.0), *[(to_come, "to do", 10.0)] * 2]


def test_settings_that_do_not_fit_together_are_listed_like_others(tmp_path):
    # As in test_queue: the sweep continues, and records why one of four fails.
    searched = {"descent.dual.optimizer": ["nupi", "adam"], "descent.dual.smoothing": [None, 0.5]}
    made = plan.make(sweep_of(tmp_path, arms={"arm": drawn("random", 4, searched)}), options(tmp_path / "out"))
    assert sorted(cell.state for cell in made.cells) == ["refused", "to do", "to do", "to do"]


def test_where_the_cost_is_unknown_the_plan_says_why_and_lists_the_cells(tmp_path, timed):
    made = plan.make(sweep_of(tmp_path, recipe="imdb-ut", fixed={}), options(tmp_path / "out"))
    assert timed == []
    assert ([cell.seconds for cell in made.cells], made.startup) == ([None] * 3, 0.0)
    assert made.problem
    assert made.summary() == f"3 trials, 0 done, 3 to do; the cost is unknown: {made.problem}"


def test_a_plan_is_shown_in_a_row_for_each_cell():
    console = Console(file=io.StringIO(), width=80)
    rows = [
        PlannedCell("erm: seed=0", "finished", 0.0),
        PlannedCell("erm: seed=1", "to do", 75.0),
        PlannedCell("x", "to do", None),
    ]
    console.print(plan.table(SweepPlan(rows, "", 1)))
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines == [
        ["trial", "state", "about"],
        ["1", "erm:", "seed=0", "finished", "0.0", "s"],
        ["2", "erm:", "seed=1", "to", "do", "0:01:15"],
        ["3", "x", "to", "do", "?"],
    ]


def test_the_command_prints_the_plan_and_does_nothing(command, tmp_path):
    path = write_search(tmp_path, arms=TWO, fixed=FIXED)
    code, output, error = command("sweep", "--search", path, "--plan", "--out", "out", "--device", "cpu")
    assert (code, error) == (0, "")
    assert output.splitlines()[-1] == "6 trials, 0 done, 6 to do; about 45.0 s on this machine"
    assert " ".join(output.splitlines()[-2].split()) == "starting workers, reading data, writing files 9.0 s"
    assert len(output.splitlines()) == 9
    assert everything_below(tmp_path) == [path]
