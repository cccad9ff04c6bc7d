"""Sweeps: what is drawn, how trials end, scores, tables, the command, and the search file."""

from __future__ import annotations

import math
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from optuna.trial import TrialState

from cudt.config import recipe as recipes
from cudt.evaluation import evaluate
from cudt.runs.info import RunInfo
from cudt.runs.run import Run, run_for
from cudt.sweep import command, results, search, worker
from cudt.sweep.results import Results
from cudt.sweep.search import Sweep
from cudt.sweep.studies import SurplusError, open_storage, own_storage, studies_of
from cudt.sweep.worker import SweepOptions, score_of, work
from cudt.utils.errors import StopRequest, UserError
from tests.sweeps import (
    ALPHA,
    ALPHAS,
    ERM,
    begun,
    curved,
    diverges_at_two_tenths,
    drawn,
    fails_at_two_tenths,
    grid,
    notes,
    on_the_hill,
    seeds,
    sweep_of,
)

TWO = {"constrained": grid(ALPHAS), "erm": seeds(3, fixed=ERM)}
GAMMAS = [0.0, 0.5, 2.0]
RUN_CELL = worker.run_cell


@pytest.fixture(autouse=True)
def _no_training(monkeypatch):
    use(on_the_hill, monkeypatch)


def use(cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "run_cell", cell)


def swept(sweep: Sweep, out: Path, *, retry_failed: bool = False) -> Results:
    """The results of a sweep that one worker in this process has run."""
    studies, options = begun(sweep, out)
    for study in studies:
        study.enqueue(retry_failed=retry_failed)
    work(studies, options, StopRequest())
    return results.write(studies, out)


def begun_run(folder: Path) -> tuple[Any, SweepOptions]:
    """A sweep of one ERM run, enqueued."""
    (study,), options = begun(sweep_of(folder, arms={"erm": seeds(1, fixed=ERM)}), folder)
    return study, options


def alphas_of(made: Results) -> list[Any]:
    return made.trials["descent.alpha"].tolist()


# ---------------------------------------------------------------- what is drawn


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_draws_depend_on_the_seed_and_a_resumed_sweep_draws_what_it_would_have(sampler, tmp_path):
    sweep = sweep_of(tmp_path, arms={"one": drawn(sampler, 4)})
    whole = alphas_of(swept(sweep, tmp_path / "a"))
    assert len({*whole}) == 4
    assert all(0 <= alpha <= 0.5 for alpha in whole)
    swept(sweep_of(tmp_path, arms={"one": drawn(sampler, 2)}), tmp_path / "b")
    more = alphas_of(swept(sweep, tmp_path / "b"))
    # TPE knows its budget: half of it is drawn at random.
    assert more == whole or (sampler == "tpe" and more[:1] == whole[:1])
    other = sweep_of(tmp_path, arms={"one": drawn(sampler, 4)}, seed=1)
    assert alphas_of(swept(other, tmp_path / "c")) != whole


def test_arms_take_turns_setting_by_setting(tmp_path):
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]}, arms=TWO)
    swept(sweep, tmp_path)
    objectives = [line.split()[0] for line in notes(tmp_path)]
    assert objectives == ["constrained", "erm"] * 6


# ---------------------------------------------------------------- how trials end


def test_a_trial_that_does_not_count_is_refused(tmp_path):
    study, _ = begun_run(tmp_path)
    first = study.study.ask()
    assert study.begin(first) == {"seed": 0}
    # Two commands may enqueue a cell, and a worker may find that others were faster.
    study.study.enqueue_trial({}, user_attrs={"cell": 0})
    for _ in range(2):
        with pytest.raises(SurplusError):
            study.begin(study.study.ask())
    study.study.tell(first, 0.5)
    assert (study.n_left, study.cells()[0].trial.value) == (0, 0.5)


def test_a_failed_run_counts_until_it_is_tried_again(tmp_path, monkeypatch):
    use(fails_at_two_tenths, monkeypatch)
    sweep = sweep_of(tmp_path)
    made = swept(sweep, tmp_path)
    assert made.trials["state"].tolist() == ["finished", "failed", "finished"]
    assert made.trials["reason"].iloc[1] == "0.2 is not allowed"
    (tmp_path / "mended").touch()
    assert swept(sweep, tmp_path).count("failed") == 1
    assert swept(sweep, tmp_path, retry_failed=True).count("finished") == 3


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interruption_gives_the_trial_back(error, tmp_path, monkeypatch):
    def stops(*_: object) -> Any:
        raise error

    study, options = begun_run(tmp_path)
    # However often: it is no fault of the run.
    for _ in range(7):
        use(stops, monkeypatch)
        with pytest.raises(type(error)):
            work([study], options, StopRequest())
        assert study.cells()[0].state == "lost"
        study.enqueue()
    use(on_the_hill, monkeypatch)
    work([study], options, StopRequest())
    assert study.cells()[0].state == "finished"


def test_a_retry_that_is_interrupted_is_not_failed_by_what_failed_before(tmp_path, monkeypatch):
    study, options = begun_run(tmp_path)
    for error, state in ((UserError("not allowed"), "failed"), (KeyboardInterrupt(), "lost")):
        study.enqueue(retry_failed=True)
        use(Mock(side_effect=error), monkeypatch)
        with suppress(KeyboardInterrupt):
            work([study], options, StopRequest())
        assert study.cells()[0].state == state


def test_what_was_drawn_for_a_trial_is_kept_when_it_is_repeated(tmp_path):
    (study,), _ = begun(sweep_of(tmp_path, arms={"one": drawn("tpe", 1)}), tmp_path)
    first = study.study.ask()
    settings = study.begin(first)
    # The worker died after its last word, and before the trial's end was stored.
    first.set_user_attr("facts", {"updates": 6})
    study.study.tell(first, state=TrialState.FAIL)
    study.enqueue()
    assert study.begin(study.study.ask()) == settings


@pytest.mark.parametrize("name", ["median", "halving"])
def test_a_run_that_looks_worse_than_others_is_ended(name, tmp_path, monkeypatch):
    use(curved, monkeypatch)
    arm = grid({"descent.alpha": [0.1, 0.2, 0.4, 0.3]}, pruner=name)
    made = swept(sweep_of(tmp_path, arms={"one": arm}), tmp_path)
    # It would have been the best.
    assert made.trials["state"].iloc[3] == "pruned"
    assert made.trials["reason"].iloc[3] == "after epoch 1"
    assert made.best["descent.alpha"].tolist() == [0.4]


# ---------------------------------------------------------------- scores


@pytest.fixture
def run(trained_run, tmp_path) -> Run:
    """A copy of a finished run."""
    out = Path(shutil.copytree(trained_run.path.parents[1], tmp_path / "out"))
    return run_for(trained_run.recipe, out)


def test_scores_are_of_validation_data_and_nan_at_a_level_is_nan(run):
    last = run.rows("layers", "validation").iloc[-1]
    assert score_of(run, "metric", None) == last["metric"]
    assert score_of(run, "loss", None) == pytest.approx(last["loss"], abs=1e-6)
    evaluate.evaluate_validation(run, GAMMAS, "cpu", None, lambda items, *_: items)
    table = run.rows("ood", "validation")
    assert score_of(run, "grid", GAMMAS) == pytest.approx(table["value"].mean())
    run.write_table("ood", table.assign(value=[0.9, 0.8, math.nan]))
    assert math.isnan(score_of(run, "grid", GAMMAS))
    assert score_of(run, "grid", GAMMAS[:2]) == pytest.approx(0.85)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_nan_is_the_worst_score_and_feasible_runs_come_first(direction, tmp_path, monkeypatch):
    use(diverges_at_two_tenths, monkeypatch)
    alphas = {"descent.alpha": [0.2, 0.3, 0.1]}
    score = {"measure": "loss", "direction": direction}
    sweep = sweep_of(tmp_path, arms={"one": grid(alphas)}, score=score)
    made = swept(sweep, tmp_path)
    worst = -math.inf if direction == "maximize" else math.inf
    assert made.trials["score"].iloc[0] == worst
    # By the score alone, 0.3 would be the best of a maximum.
    assert made.best["descent.alpha"].tolist() == [0.1]
    best = recipes.load(str(made.folder / "best.yaml"))
    assert best.settings.descent.alpha == 0.1
    rows = made.trials[made.trials["descent.alpha"] != 0.1]
    assert results.best_of_arms(rows, sweep)["descent.alpha"].tolist() == [0.3]


# ---------------------------------------------------------------- tables


def test_the_files_say_what_was_run(tmp_path):
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]}, arms=TWO)
    made = swept(sweep, tmp_path)
    table = pd.read_csv(made.folder / "trials_wide.csv")
    assert (len(table), table["run"].nunique()) == (12, 12)
    # What an arm does not search is empty in its rows.
    assert table[table["arm"] == "erm"]["descent.alpha"].isna().all()
    best = pd.read_csv(made.folder / "best.csv")
    assert best["arm"].tolist() == ["constrained", "erm"] * 2
    assert best["spent_updates"].tolist() == [18] * 4
    assert best["score"].tolist() == table.groupby(["setting", "arm"])["score"].max().tolist()
    for _, row in best.iterrows():
        name = f"{row['setting'].replace('=', '_')}-{row['arm']}.yaml"
        loaded = recipes.load(str(made.folder / "best" / name))
        assert f"{loaded.name}/{loaded.settings.objective}-{loaded.identity()}" == row["run"]


# ---------------------------------------------------------------- many sweeps, many machines


def test_of_several_sweeps_the_unfinished_one_or_the_named_one_is_joined(tmp_path):
    url = own_storage(tmp_path)
    with pytest.raises(UserError, match="no such unfinished sweep; sweeps: none"):
        command.find(url, None)
    assert not list(tmp_path.iterdir())
    one = sweep_of(tmp_path, name="one", arms={"erm": seeds(1, fixed=ERM)})
    two = sweep_of(tmp_path, name="two")
    for sweep in (one, two):
        begun(sweep, tmp_path, url)
    with pytest.raises(UserError, match=rf"choose one with --search; sweeps: {one.title}, two-"):
        command.find(url, None)
    assert command.find(url, "two").identity() == two.identity()
    work(studies_of(one, open_storage(url)), SweepOptions(tmp_path), StopRequest())
    assert command.find(url, None).name == "two"


def test_no_password_is_printed():
    with pytest.raises(UserError, match=r"^cannot open the storage") as error:
        open_storage("nonsense://me:secret@db/x")
    assert "secret" not in str(error.value)


def test_a_finished_run_is_only_scored(run, tmp_path, monkeypatch):
    use(RUN_CELL, monkeypatch)
    run.update_info(RunInfo(seconds=1234.5))
    sweep, before = sweep_of(tmp_path, arms={"constrained": seeds(1)}), run.info()
    made = swept(sweep, tmp_path / "out")
    (row,) = made.trials.to_dict("records")
    assert (row["state"], row["updates"]) == ("finished", 6)
    # Both are of the run, though this sweep did not train it.
    assert (made.best["spent_updates"][0], made.best["spent_seconds"][0]) == (6, 1234.5)
    assert run.info().ended == before.ended
    assert row["run"] == f"{run.path.parent.name}/{run.path.name}"


# ---------------------------------------------------------------- the search file


def refusal(folder, **changes: Any) -> str:
    with pytest.raises(UserError) as error:
        sweep_of(folder, **{"fixed": None, **changes})
    return str(error.value)


def test_the_searches_that_come_with_cudt_are_valid():
    for name in recipes.names("search"):
        assert search.load(name).search.reproduces.strip()


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (grid(ALPHA), "list its values"),
        ({"sampler": "random", "search": ALPHA}, "budget is missing"),
        (seeds(3, search=ALPHAS), "settings to search"),
        (drawn("tpe", 3, {"descent.alpha": {"low": 0.5, "high": 0.1}}), "low <= high"),
        (drawn("tpe", 3, {"descent.alpha": {"low": 0.1, "hihg": 2}}), "did you mean 'high'?"),
    ],
)
def test_an_arm_that_cannot_be_run_is_refused(arm, said, tmp_path):
    refused = refusal(tmp_path, arms={"one": arm})
    assert "arms.one" in refused
    assert said in refused


def test_budgets_are_equal_and_a_key_is_set_in_one_place(tmp_path):
    arms = {"constrained": grid(ALPHAS), "erm": seeds(5, fixed=ERM)}
    assert "constrained 3, erm 5 runs" in refusal(tmp_path, arms=arms)
    arms = {"one": grid(ALPHAS, fixed={"descent.alpha": 0.1, "model.width": 8})}
    said = refusal(tmp_path, arms=arms, settings={"model.width": [8, 16]})
    assert "arms.one: descent.alpha, model.width is set in two places" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arms": {"a": drawn("tpe", 3, {"descent.alpha": {"low": 0.1, "high": 1.5}})}}, "alpha"),
        ({"arms": {"a": grid({"training.epochs": [1, 2, "three"]})}}, "training.epochs"),
        ({"arms": {"a": seeds(3, fixed={"no.such": 1})}}, "no: unknown key"),
        ({"arms": {"a": grid({"evaluation.gammas": ["0,1", "0,2"]})}}, "does not affect training"),
        ({"recipe": None}, "recipe: missing"),
    ],
)
def test_every_choice_and_both_ends_are_tried_with_the_recipe(changes, said, tmp_path):
    assert said in refusal(tmp_path, **changes)


def test_a_sweep_is_settings_times_arms_with_the_recipes_of_train(tmp_path):
    sweep = sweep_of(
        tmp_path,
        settings={"training.learning_rate": [0.1, 0.2], "noise.gamma_train": [0.0, 0.8]},
        arms={"constrained": grid(ALPHAS), "erm": seeds(3, fixed=ERM)},
    )
    assert len(sweep.settings) == 4
    settings = sweep.recipe(sweep.settings[3], "constrained", {"descent.alpha": 0.2}).settings
    assert (settings.training.learning_rate, settings.noise.gamma_train) == (0.2, 0.8)
    assert (settings.descent.alpha, settings.training.epochs) == (0.2, 2)
    assert search.label(sweep.settings[1], "erm", {"seed": 2}) == (
        "training.learning_rate=0.1, noise.gamma_train=0.8, erm: seed=2"
    )


def test_a_larger_budget_is_the_same_sweep_and_anything_else_another(tmp_path):
    first = sweep_of(tmp_path, arms={"erm": seeds(2, fixed=ERM)})
    same = {"arms": {"erm": seeds(9, fixed=ERM)}, "reproduces": "x"}
    assert sweep_of(tmp_path, **same).identity() == first.identity()
    others: list[dict[str, Any]] = [
        {"arms": {"erm": seeds(2)}},
        {"arms": {"erm": seeds(2, fixed=ERM)}, "seed": 1},
        {"arms": {"erm": seeds(2, fixed=ERM)}, "recipe": "smoke-text", "fixed": None},
    ]
    assert len({first.identity(), *(sweep_of(tmp_path, **one).identity() for one in others)}) == 4


def test_a_sweep_comes_back_from_its_own_files(tmp_path):
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]})
    for name, text in sweep.texts().items():
        (tmp_path / name).write_text(text)
    again = search.load(str(tmp_path / "sweep.yaml"))
    assert (again.name, again.identity()) == (sweep.name, sweep.identity())
    assert search.from_texts(sweep.texts()).first_recipe == sweep.first_recipe
