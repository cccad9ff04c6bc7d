from __future__ import annotations

import io

import pytest
from rich.console import Console

from cudt.sweep import results
from cudt.sweep.display import Cell, SweepDisplay, best_table, ending
from cudt.sweep.messages import CellProgress
from tests.sweep.searches import ALPHAS, grid, seeds, sweep_of
from tests.sweep.test_results import studies_of, tell

TWO = {"constrained": grid(ALPHAS), "erm": seeds(3, fixed={"objective": "erm"})}


@pytest.fixture
def studies(tmp_path):
    return studies_of(sweep_of(tmp_path, arms=TWO))


@pytest.fixture
def cells(studies) -> list[Cell]:
    return cells_of(studies)


def cells_of(studies) -> list[Cell]:
    """The cells, the arms in turn."""
    arms = [[(study, trial) for trial in study.trials()] for study in studies]
    in_turn = [pair for turn in zip(*arms, strict=True) for pair in turn]
    return [Cell((study.name, trial.cell), study.describe(trial)) for study, trial in in_turn]


def console_of(**settings) -> Console:
    return Console(file=io.StringIO(), width=100, markup=False, emoji=False, **settings)


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_each_cell_that_ends_has_a_line(studies, cells):
    console = console_of()
    with SweepDisplay(console) as display:
        display.begin(studies, 0)
        for cell in cells[:3]:
            display.running(cell, CellProgress(1, 6, 0.5))
        display.finished(cells[0], "score 0.12346")
        display.failed(cells[1], "the loss [of layer 1] is not finite")
        display.died(cells[2], "by signal 9 (SIGKILL); see log")
        display.interrupted(cells[3])
    assert printed(console).splitlines() == [
        "1/6  constrained: alpha=0.1  score 0.12346",
        "2/6  erm: seed=0  failed: the loss [of layer 1] is not finite",
        "constrained: alpha=0.2: the worker process ended by signal 9 (SIGKILL); see log; "
        "another worker resumes it",
        "erm: seed=1: interrupted, can be resumed",
    ]


def shown(made) -> str:
    console = console_of()
    console.print(best_table(made))
    return printed(console)


def test_the_best_of_each_arm_is_shown_with_what_it_spent(studies, tmp_path):
    tell(studies[0], 0.5, 0.75, "no")
    tell(studies[1], "no", "no", "no")
    made = results.write(studies[0].sweep, studies, tmp_path / "folder", "cudt sweep")
    lines = [line.split() for line in shown(made).splitlines()]
    assert lines[0] == ["arm", "score", "feasible", "runs", "failed", "updates", "time"]
    assert lines[1] == ["constrained", "0.75", "yes", "2", "1", "12", "4.5", "s"]
    # An arm without a finished run has neither a score nor a verdict.
    assert lines[2] == ["erm", "0", "3", "0", "4.5", "s"]


def test_the_ending_names_the_best_runs_and_the_next_command(studies, tmp_path):
    tell(studies[0], 0.5, 0.75, 0.25)
    tell(studies[1], "no", 0.25, 0.125)
    made = results.write(studies[0].sweep, studies, tmp_path / "folder", "cudt sweep")
    out = tmp_path / "out"
    for run in made.best["run"]:
        (out / run).mkdir(parents=True)
    assert ending(made, out).splitlines() == [
        f"best of constrained: alpha=0.2  {out}/reviews-ut/constrained-1",
        f"best of erm: seed=1  {out}/reviews-ut/erm-1",
        "1 failed: see the reasons in trials_wide.csv, retry them with --retry-failed",
        f"chosen on validation data; all 5 finished runs: {tmp_path}/folder/trials_wide.csv",
        f"next: cudt eval-ood {out}/reviews-ut/constrained-1 {out}/reviews-ut/erm-1",
    ]
