from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from cudt.sweep.definition import Parameters
from cudt.sweep.queue import NotACellError
from cudt.sweep.results import best_of_arms, wide
from cudt.sweep.storage import open_storage, own_storage
from cudt.sweep.study import ArmStudy
from tests.sweep import planted
from tests.sweep.searches import ALPHAS, drawn, finish, grid, seeds, study_of, sweep_of

RATE = "descent.dual.learning_rate"
HILL = {"descent.alpha": {"low": 0.0, "high": 0.9}, RATE: {"low": 1e-5, "high": 1.0, "log": True}}
DRAWN = ["random", "tpe"]


def on_the_hill(parameters: Parameters) -> float:
    return planted.height(float(parameters["descent.alpha"] or 0), float(parameters[RATE] or 0))


def exhaust(
    study: ArmStudy, score: Callable[[Parameters], float] = lambda parameters: 0.0
) -> list[Parameters]:
    """Run a study to its end; what it ran."""
    ran = []
    while trial := study.next():
        ran.append(trial.parameters)
        finish(study, trial, score(trial.parameters), {"updates": 1, "seconds": 1.0})
    return ran


def give_back_all(study: ArmStudy) -> None:
    """Let every running trial wait again, as if its worker had been asked to stop."""
    for trial in study.trials():
        if trial.state == "running":
            assert study.give_back(trial, {"seconds": 1.0, "deaths": 0})


def scores(study: ArmStudy) -> list[float]:
    return [trial.score for trial in study.trials() if trial.score is not None]


# ---------------------------------------------------------------- a planted problem


def test_a_grid_finds_the_best_cell_exactly(tmp_path):
    alphas, rates = [0.05, 0.1, 0.2, 0.3, 0.5], [1e-4, 1e-3, 3e-3, 1e-2, 1e-1]
    sweep = sweep_of(tmp_path, arms={"constrained": grid({"descent.alpha": alphas, RATE: rates})})
    study = study_of(sweep)
    ran = exhaust(study, on_the_hill)
    assert ran == [{"descent.alpha": alpha, RATE: rate} for alpha in alphas for rate in rates]
    (best,) = best_of_arms(wide(sweep, [study]), "maximize").to_dict("records")
    assert (best["descent.alpha"], best[RATE]) == (0.2, 3e-3)
    assert best["score"] == planted.height(0.2, 3e-3) == max(map(on_the_hill, ran))


def test_tpe_comes_close_to_the_planted_optimum_and_closer_than_chance(tmp_path):
    def shortfalls(sampler: str) -> list[float]:
        found = []
        for seed in range(4):
            study = study_of(
                sweep_of(tmp_path, seed=seed, arms={"drawn": drawn(sampler, 40, HILL)})
            )
            assert len(exhaust(study, on_the_hill)) == 40
            found.append(planted.HEIGHT - max(scores(study)))
        return found

    by_results, by_chance = shortfalls("tpe"), shortfalls("random")
    assert max(by_results) < 0.02
    assert statistics.mean(by_results) < 0.3 * statistics.mean(by_chance)


# ---------------------------------------------------------------- budgets


@pytest.mark.parametrize(
    ("arm", "budget"),
    [(drawn("tpe", 7), 7), (drawn("random", 7), 7), (seeds(4), 4), (grid(ALPHAS), 3)],
    ids=["tpe", "random", "seeds", "grid"],
)
def test_a_budget_is_spent_and_never_exceeded_however_often_the_sweep_is_resumed(
    arm, budget, tmp_path
):
    sweep, storage = sweep_of(tmp_path, arms={"arm": arm}), open_storage(None)
    ran: list[Parameters] = []
    for lives in range(4):
        study = study_of(sweep, storage)
        assert study.left == budget - len(ran)
        for _ in range(2 + lives):
            if trial := study.next():
                ran.append(trial.parameters)
                finish(study, trial, 0.5, {})
        assert len(study.trials()) <= budget
    assert len(ran) == budget
    assert study_of(sweep, storage).next() is None
    assert [trial.state for trial in study.trials()] == ["finished"] * budget
    assert study.left == 0


@pytest.mark.parametrize("sampler", DRAWN)
def test_a_larger_budget_continues_the_draws(sampler, tmp_path):
    storage = open_storage(None)
    first = exhaust(study_of(sweep_of(tmp_path, arms={"drawn": drawn(sampler, 3)}), storage))
    study = study_of(sweep_of(tmp_path, arms={"drawn": drawn(sampler, 5)}), storage)
    assert study.left == 2
    more = exhaust(study)
    assert len(more) == 2
    assert not [parameters for parameters in more if parameters in first]
    assert [trial.parameters for trial in study.trials()] == first + more


def test_a_larger_budget_adds_seeds(tmp_path):
    storage = open_storage(None)
    exhaust(study_of(sweep_of(tmp_path, arms={"erm": seeds(2)}), storage))
    assert exhaust(study_of(sweep_of(tmp_path, arms={"erm": seeds(4)}), storage)) == [
        {"seed": 2},
        {"seed": 3},
    ]


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize(
    "arm",
    [drawn("tpe", 4), drawn("random", 4), seeds(4), grid(ALPHAS)],
    ids=["tpe", "random", "seeds", "grid"],
)
def test_a_trial_that_ran_when_its_worker_died_is_started_again_as_it_is(arm, tmp_path):
    sweep, storage = sweep_of(tmp_path, arms={"arm": arm}), open_storage(own_storage(tmp_path))
    study = study_of(sweep, storage)
    done, under_way = study.next(), [study.next(), study.next()]
    assert done is not None
    finish(study, done, 0.5, {})
    give_back_all(study)
    again = study_of(sweep, storage)
    started = [again.next(), again.next()]
    # Before the others, as the same trials with the same settings.
    assert [(one.number, one.parameters) for one in started if one] == [
        (one.number, one.parameters) for one in under_way if one
    ]
    for trial in started:
        assert trial is not None
        finish(again, trial, 0.5, {})
    exhaust(again)
    assert len(again.study.trials) == len(again.trials()) == sweep.budget("arm")


@pytest.mark.parametrize("sampler", DRAWN)
def test_a_resumed_sweep_draws_what_it_would_have_drawn_and_nothing_twice(sampler, tmp_path):
    sweep = sweep_of(tmp_path, arms={"drawn": drawn(sampler, 8, HILL)})
    undisturbed = exhaust(study_of(sweep), on_the_hill)
    storage, ran = open_storage(None), []
    for _ in range(8):
        study = study_of(sweep, storage)
        if trial := study.next():
            ran.append(trial.parameters)
            finish(study, trial, on_the_hill(trial.parameters), {})
    assert len({str(parameters) for parameters in ran}) == 8
    assert ran == undisturbed


@pytest.mark.parametrize("sampler", DRAWN)
def test_the_same_sweep_draws_the_same_and_another_seed_draws_otherwise(sampler, tmp_path):
    def draws(seed: int) -> list[Parameters]:
        return exhaust(study_of(sweep_of(tmp_path, seed=seed, arms={"drawn": drawn(sampler, 6)})))

    assert draws(0) == draws(0)
    assert not [parameters for parameters in draws(1) if parameters in draws(0)]


# ---------------------------------------------------------------- spaces that end


@pytest.mark.parametrize(
    ("searched", "allowed"),
    [
        ({"seed": {"low": 2, "high": 9, "step": 3, "type": "int"}}, {2, 5, 8}),
        ({"seed": [True, 3]}, {True, 3}),
        ({"training.clip_norm": [0.5, None, 1.0]}, {0.5, None, 1.0}),
        ({"seed": {"low": 1, "high": 3, "log": True, "type": "int"}}, {1, 2, 3}),
    ],
)
def test_draws_are_among_the_values_that_were_written(searched, allowed, tmp_path, monkeypatch):
    monkeypatch.setattr("cudt.sweep.checks_recipe.with_recipe", lambda *_: [])
    sweep = sweep_of(tmp_path, arms={"drawn": drawn("random", len(allowed), searched)})
    values = [value for parameters in exhaust(study_of(sweep)) for value in parameters.values()]
    assert {repr(value) for value in values} <= {repr(value) for value in allowed}


@pytest.mark.parametrize("higher_first", [True, False])
def test_two_workers_that_draw_the_same_do_not_both_keep_it(higher_first, tmp_path, monkeypatch):
    """However the steps of two draws alternate: one of them keeps the settings."""
    sweep = sweep_of(tmp_path, arms={"drawn": drawn("random", 2, {"seed": [0, 1]})})
    studies = [study_of(sweep, open_storage(own_storage(tmp_path))) for _ in range(2)]
    monkeypatch.setattr(ArmStudy, "_seed", lambda self, number: 0)
    trials = []
    for study in studies:
        study.refresh()
        with pytest.warns(UserWarning, match="Heartbeat"):
            trials.append(study.study.ask())
    pairs = sorted(
        zip(studies, trials, strict=True), key=lambda pair: pair[1].number, reverse=higher_first
    )
    pairs[0][0].begin(pairs[0][1])
    with pytest.raises(NotACellError):
        pairs[1][0].begin(pairs[1][1])
    pairs[1][0].abandon(pairs[1][1]._trial_id)
    monkeypatch.undo()
    again = study_of(sweep, open_storage(own_storage(tmp_path))).next()
    assert again is not None
    assert again.parameters != pairs[0][1].params
