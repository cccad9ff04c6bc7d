from __future__ import annotations

from pathlib import Path

import pytest

from cudt.runs.info import RunInfo, Status
from cudt.runs.run import run_for
from cudt.sweep import plan
from cudt.sweep.definition import Sweep
from cudt.sweep.plan import SweepPlan
from cudt.sweep.run_sweep import SweepOptions, open_studies
from cudt.sweep.storage import own_storage
from tests.sweep.searches import (
    ALPHAS,
    FIXED,
    drawn,
    fail,
    finish,
    grid,
    seeds,
    sweep_of,
    write_search,
)

TWO = {"constrained": grid(ALPHAS), "erm": seeds(3, fixed={"objective": "erm"})}


def options(out: Path, **more) -> SweepOptions:
    return SweepOptions(out, "cpu", **more)


def cells(made: SweepPlan) -> list[tuple[str, str]]:
    return [(cell.name, cell.state) for cell in made.cells]


def begin(sweep: Sweep, out: Path, status: Status, **parameters) -> None:
    """A run folder as a cell leaves it."""
    arm = next(iter(sweep.search.arms))
    searched = {key.replace("__", "."): value for key, value in parameters.items()}
    run = run_for(sweep.recipe(sweep.settings[0], arm, searched), out)
    run.path.mkdir(parents=True)
    run.update_info(RunInfo(status=status))


def everything_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_every_cell_is_listed(tmp_path):
    made = plan.make(sweep_of(tmp_path, arms=TWO), options(tmp_path / "out"))
    assert cells(made) == [
        ("constrained: alpha=0.1", "to do"),
        ("constrained: alpha=0.2", "to do"),
        ("constrained: alpha=0.3", "to do"),
        ("erm: seed=0", "to do"),
        ("erm: seed=1", "to do"),
        ("erm: seed=2", "to do"),
    ]
    assert made.summary() == "6 trials, 0 done, 6 to do"


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


def test_the_states_of_cells_are_reported(tmp_path):
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
    assert [cell.state for cell in made.cells] == ["finished", "started", "failed", "to do"]
    assert made.summary() == "4 trials, 2 done, 2 to do"
    assert [path.read_bytes() for path in everything_below(out) if path.is_file()] == before


def test_what_chance_will_draw_is_what_the_plan_says(tmp_path):
    sweep = sweep_of(tmp_path, arms={"drawn": drawn("random", 4)})
    names = [cell.name for cell in plan.make(sweep, options(tmp_path / "out")).cells]
    (study,) = open_studies(sweep, None)
    assert names == [
        sweep.describe({}, "drawn", trial.parameters) for trial in iter(study.next, None)
    ]
    assert len(set(names)) == 4


def test_what_results_will_choose_is_to_be_drawn(tmp_path):
    sweep, out = sweep_of(tmp_path, arms={"drawn": drawn("tpe", 3)}), tmp_path / "out"
    to_come = "drawn: to be drawn by tpe"
    assert cells(plan.make(sweep, options(out))) == [(to_come, "to do")] * 3
    sweep.folder(out).mkdir(parents=True)
    (study,) = open_studies(sweep, own_storage(sweep.folder(out)))
    trial = study.next()
    assert trial is not None
    begin(
        sweep,
        out,
        "finished",
        **{key.replace(".", "__"): value for key, value in trial.parameters.items()},
    )
    finish(study, trial, 0.5, {})
    known = sweep.describe({}, "drawn", trial.parameters)
    assert cells(plan.make(sweep, options(out))) == [(known, "finished"), *[(to_come, "to do")] * 2]


def test_where_data_are_missing_the_plan_says_so_and_lists_the_cells(tmp_path):
    made = plan.make(
        sweep_of(tmp_path, recipe="imdb-ut", fixed={}),
        options(tmp_path / "out", data_root=tmp_path),
    )
    assert made.problem
    assert made.summary() == f"3 trials, 0 done, 3 to do\nmissing: {made.problem}"


def test_the_command_prints_the_plan_and_does_nothing(command, tmp_path):
    path = write_search(tmp_path, arms=TWO, fixed=FIXED)
    code, output, error = command(
        "sweep", "--search", path, "--plan", "--out", "out", "--device", "cpu"
    )
    assert (code, error) == (0, "")
    lines = output.splitlines()
    assert lines[1].split() == ["1", "constrained:", "alpha=0.1", "to", "do"]
    assert lines[-1] == "6 trials, 0 done, 6 to do"
    assert len(lines) == 8
    assert everything_below(tmp_path) == [path]
