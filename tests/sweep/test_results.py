from __future__ import annotations

import json

import pandas as pd
import pytest

from cudt.config import recipe
from cudt.sweep import results
from cudt.sweep.definition import Sweep
from cudt.sweep.run_sweep import open_studies
from cudt.sweep.study import ArmStudy
from tests.sweep.planted import result
from tests.sweep.searches import ALPHAS, fail, finish, grid, seeds, sweep_of

TWO = {"constrained": grid(ALPHAS), "erm": seeds(3, fixed={"objective": "erm"})}


def studies_of(sweep: Sweep) -> list[ArmStudy]:
    studies = open_studies(sweep, None)
    for study in studies:
        study.top_up()
    return studies


def tell(study: ArmStudy, *scores: float | str | None) -> None:
    """Finish trials with scores, fail them with reasons, leave them running."""
    for score in scores:
        trial = study.next()
        assert trial is not None
        spent = {"run": f"reviews-ut/{study.arm}-{trial.number}", "seconds": 1.5, "deaths": 0}
        if isinstance(score, str):
            fail(study, trial, score, spent)
        elif score is not None:
            finish(study, trial, score, {**result(score).facts, **spent})


@pytest.fixture
def sweep(tmp_path) -> Sweep:
    return sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]}, arms=TWO)


@pytest.fixture
def studies(sweep) -> list[ArmStudy]:
    """In the first setting all is done, in the second one arm has failed and one has hardly
    begun."""
    found = studies_of(sweep)
    tell(found[0], 0.5, 0.75, 0.25)
    tell(found[1], 0.25, "it was too steep", 0.5)
    tell(found[2], "no", "no", "no")
    tell(found[3], 0.125, None)
    return found


def test_every_trial_has_a_row_with_its_settings_and_facts(sweep, studies, tmp_path):
    results.write(sweep, studies, tmp_path, "cudt sweep")
    table = pd.read_csv(tmp_path / "trials_wide.csv")
    head = [
        "setting",
        "arm",
        "trial",
        "state",
        "score",
        "noise.gamma_train",
        "descent.alpha",
        "seed",
    ]
    assert table.columns.tolist() == [*head, *results.FACTS]
    assert table["state"].value_counts().to_dict() == {
        "finished": 6,
        "failed": 4,
        "running": 1,
        "waiting": 1,
    }
    first = table.iloc[1]
    assert first[["setting", "arm", "trial", "score", "descent.alpha"]].tolist() == [
        "noise.gamma_train=0.0",
        "constrained",
        1,
        0.75,
        0.2,
    ]
    assert first[["run", "updates", "seconds"]].tolist() == ["reviews-ut/constrained-1", 6, 1.5]
    # What an arm does not search is empty in its rows, and a trial that failed has no score.
    assert table[table["arm"] == "constrained"]["seed"].isna().all()
    assert table[table["arm"] == "erm"]["descent.alpha"].isna().all()
    assert table[table["state"] != "finished"]["score"].isna().all()
    assert table[table["state"] == "failed"]["reason"].tolist() == [
        "it was too steep",
        "no",
        "no",
        "no",
    ]


def test_the_long_table_says_the_same_as_the_wide_one(sweep, studies, tmp_path):
    results.write(sweep, studies, tmp_path, "cudt sweep")
    tall = pd.read_csv(tmp_path / "trials.csv", dtype=str)
    assert tall.columns.tolist() == ["setting", "arm", "trial", "name", "value"]
    assert not tall.duplicated(["setting", "arm", "trial", "name"]).any()
    broad = pd.read_csv(tmp_path / "trials_wide.csv", dtype=str).set_index(
        ["setting", "arm", "trial"]
    )
    values = {
        (*key, name, value) for key, row in broad.iterrows() for name, value in row.dropna().items()
    }
    assert len(values) == len(tall)
    assert set(tall.itertuples(index=False, name=None)) == values


def test_the_best_of_each_arm_in_each_setting_is_reported_with_what_the_arm_spent(
    sweep, studies, tmp_path
):
    made = results.write(sweep, studies, tmp_path, "cudt sweep")
    best = pd.read_csv(tmp_path / "best.csv")
    assert best[["setting", "arm"]].to_numpy().tolist() == [
        ["noise.gamma_train=0.0", "constrained"],
        ["noise.gamma_train=0.0", "erm"],
        ["noise.gamma_train=0.8", "constrained"],
        ["noise.gamma_train=0.8", "erm"],
    ]
    assert best["score"].fillna(-1).tolist() == [0.75, 0.5, -1, 0.125]
    assert best["runs"].tolist() == [3, 2, 0, 1]
    assert best["failed"].tolist() == [0, 1, 3, 0]
    assert best["spent_updates"].tolist() == [18, 12, 0, 6]
    # What failed was spent too.
    assert best["spent_seconds"].tolist() == [4.5, 4.5, 4.5, 1.5]
    assert best["run"].dropna().tolist() == [
        "reviews-ut/constrained-1",
        "reviews-ut/erm-2",
        "reviews-ut/erm-0",
    ]
    assert (made.n_finished, made.n_failed) == (6, 4)


@pytest.mark.parametrize(
    ("direction", "scores", "number"),
    [
        ("maximize", [0.5, 0.75, 0.25], 1),
        ("minimize", [0.5, 0.75, 0.25], 2),
        ("minimize", [0.75, 0.25, 0.25], 1),
        ("minimize", [0.5, 0.5, 0.5], 0),
        ("minimize", ["failed", 0.25, "failed"], 1),
    ],
)
def test_the_best_is_the_first_of_the_best_that_finished(direction, scores, number, tmp_path):
    measure = "metric" if direction == "maximize" else "loss"
    sweep = sweep_of(tmp_path, score={"measure": measure, "direction": direction})
    (study,) = studies = studies_of(sweep)
    tell(study, *scores)
    made = results.write(sweep, studies, tmp_path / "folder", "cudt sweep")
    assert made.best["trial"].tolist() == [number]
    loaded = recipe.load(str(tmp_path / "folder" / "best.yaml"))
    assert loaded.settings.descent.alpha == [0.1, 0.2, 0.3][number]


def test_the_best_recipes_say_how_they_were_chosen_and_are_the_runs_that_were_best(
    sweep, studies, tmp_path
):
    results.write(sweep, studies, tmp_path / "folder", "cudt sweep")
    names = [
        "noise.gamma_train_0.0-constrained",
        "noise.gamma_train_0.0-erm",
        "noise.gamma_train_0.8-erm",
    ]
    assert sorted(path.stem for path in (tmp_path / "folder" / "best").iterdir()) == names
    text = (tmp_path / "folder" / "best.yaml").read_text()
    assert text == (tmp_path / "folder" / "best" / f"{names[0]}.yaml").read_text()
    assert text.startswith("# The best of 3 runs by validation metric (maximize: 0.75)\n")
    wanted = sweep.recipe({"noise.gamma_train": 0.8}, "erm", {"seed": 0})
    assert (
        recipe.load(str(tmp_path / "folder" / "best" / f"{names[2]}.yaml")).identity()
        == wanted.identity()
    )


def test_the_summary_counts(sweep, studies, tmp_path):
    results.write(sweep, studies, tmp_path, "cudt sweep")
    summary = json.loads((tmp_path / "sweep.json").read_text())
    assert (summary["finished"], summary["failed"], summary["left"]) == (6, 4, 2)
    assert (summary["measure"], summary["direction"], summary["gammas"]) == (
        "metric",
        "maximize",
        None,
    )
    assert summary["arms"] == {
        "constrained": {"sampler": "grid", "budget": 3, "pruner": None},
        "erm": {"sampler": "seeds", "budget": 3, "pruner": None},
    }
    assert summary["settings"] == ["noise.gamma_train"]
    assert summary["keys"] == ["noise.gamma_train", "descent.alpha", "seed"]
    assert summary["log_keys"] == []
