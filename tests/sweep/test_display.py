from __future__ import annotations

import io

import pytest
from rich.console import Console

from cudt.sweep import results
from cudt.sweep.display import Cell, SweepDisplay, best_table, ending
from cudt.sweep.messages import CellProgress
from cudt.sweep.observer import Observer
from tests.sweep.searches import ALPHAS, drawn, grid, seeds, sweep_of
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
        "constrained: alpha=0.2: the worker process ended by signal 9 (SIGKILL); see log; another worker resumes it",
        "erm: seed=1: interrupted, can be resumed",
    ]


def test_a_resumed_sweep_says_how_far_it_is(studies):
    tell(studies[0], 0.5, "no")
    tell(studies[1], None)
    console = console_of()
    SweepDisplay(console).begin(studies, Observer(studies, SweepDisplay(console)).n_done)
    assert printed(console) == "resuming: 2 of 6 trials are done\n"


def test_a_new_sweep_prints_nothing_at_the_start(studies):
    console = console_of()
    SweepDisplay(console).begin(studies, 0)
    assert printed(console) == ""


def test_the_count_is_as_wide_as_the_total(tmp_path):
    studies = studies_of(sweep_of(tmp_path, arms={"erm": seeds(12)}))
    console = console_of()
    display = SweepDisplay(console)
    display.begin(studies, 0)
    for cell in cells_of(studies):
        display.finished(cell, "score 1")
    lines = printed(console).splitlines()
    assert lines[0] == " 1/12  erm: seed=0  score 1"
    assert lines[-1] == "12/12  erm: seed=11  score 1"


def test_a_warning_is_shown_once(studies):
    console = console_of()
    display = SweepDisplay(console)
    for _ in range(3):
        display.warn("a clip [x] is skipped")
    display.warn("another")
    assert printed(console).splitlines() == ["warning: a clip [x] is skipped", "warning: another"]


def test_a_terminal_shows_the_running_cells(studies, cells, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = console_of(force_terminal=True, color_system=None)
    with SweepDisplay(console) as display:
        display.begin(studies, 0)
        display.running(cells[0], None)
        display.running(cells[1], CellProgress(3, 6, 0.4321))
        picture = console_of()
        picture.print(display._picture())
        display.ended(cells[0])
        display.finished(cells[0], "score 0.5")
        later = console_of()
        later.print(display._picture())
    text = printed(picture)
    assert "0 of 6 trials" in text
    assert "constrained: alpha=0.1" in text
    assert "starting" in text
    assert "update 3/6" in text
    assert "loss 0.4321" in text
    assert "left" not in text
    assert "1 of 6 trials" in printed(later)
    assert "alpha=0.1" not in printed(later)
    assert "left" in printed(later)
    assert "1/6  constrained: alpha=0.1  score 0.5" in printed(console)


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


def test_the_ending_says_why_budgets_differ(tmp_path):
    arms = {"constrained": grid(ALPHAS), "erm": seeds(2, fixed={"objective": "erm"})}
    sweep = sweep_of(tmp_path, arms=arms, unequal_budgets="there was no time")
    studies = studies_of(sweep)
    tell(studies[0], 0.5)
    made = results.write(sweep, studies, tmp_path / "folder", "cudt sweep")
    assert "the arms have different budgets: there was no time" in ending(made, tmp_path)


def test_the_ending_counts_the_cells_that_are_left(tmp_path):
    sweep = sweep_of(tmp_path, arms={"drawn": drawn("random", 3)})
    studies = studies_of(sweep)
    tell(studies[0], 0.5)
    made = results.write(sweep, studies, tmp_path / "folder", "cudt sweep")
    assert "2 trials are left; run the same command to resume" in ending(made, tmp_path)


def test_a_best_run_that_was_deleted_or_is_elsewhere_is_marked(tmp_path):
    sweep = sweep_of(tmp_path, arms={"drawn": drawn("random", 1)})
    studies = studies_of(sweep)
    tell(studies[0], 0.5)
    made = results.write(sweep, studies, tmp_path / "folder", "cudt sweep")
    assert "(on another machine, or deleted; " in ending(made, tmp_path)
    assert "next: " not in ending(made, tmp_path)
    (tmp_path / made.best["run"].iloc[0]).mkdir(parents=True)
    assert "(on another machine, or deleted; " not in ending(made, tmp_path)
    assert "next: cudt eval-ood" in ending(made, tmp_path)


def test_settings_are_shown_next_to_their_arms(tmp_path):
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]}, arms={"erm": seeds(1)})
    studies = studies_of(sweep)
    for study in studies:
        tell(study, 0.5)
    text = shown(results.write(sweep, studies, tmp_path / "folder", "cudt sweep"))
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [
        ["gamma_train=0", "erm"],
        ["gamma_train=0.8", "erm"],
    ]


def test_the_setting_of_an_arm_without_a_finished_run_is_shown_too(tmp_path):
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]}, arms={"erm": seeds(1)})
    studies = studies_of(sweep)
    tell(studies[0], 0.5)
    tell(studies[1], "no")
    text = shown(results.write(sweep, studies, tmp_path / "folder", "cudt sweep"))
    assert text.splitlines()[2].split()[0] == "gamma_train=0.8"
