from __future__ import annotations

from cudt.sweep.definition import Sweep
from cudt.sweep.queue import Cell, Queue
from cudt.sweep.storage import open_storage
from cudt.sweep.study import ArmStudy
from tests.sweep.searches import ALPHA, drawn, grid, queue_of, seeds, sweep_of

TWO = {"constrained": grid({"descent.alpha": [0.1, 0.2]}), "erm": seeds(2, fixed={"objective": "erm"})}


def studies_of(sweep: Sweep, storage=None) -> list[ArmStudy]:
    storage = storage or open_storage(None)
    found = [ArmStudy(sweep, setting, arm, storage) for setting in sweep.settings for arm in sweep.search.arms]
    for study in found:
        study.take_over(retry_failed=False)
    return found


def rest(queue: Queue) -> list[Cell]:
    return list(iter(queue.next, None))


def test_cells_come_setting_by_setting_and_the_arms_in_turn(tmp_path):
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.0, 0.8]}, arms=TWO)
    cells = rest(queue_of(studies_of(sweep)))
    assert [cell.name for cell in cells] == [
        "gamma_train=0, constrained: alpha=0.1",
        "gamma_train=0, erm: seed=0",
        "gamma_train=0, constrained: alpha=0.2",
        "gamma_train=0, erm: seed=1",
        "gamma_train=0.8, constrained: alpha=0.1",
        "gamma_train=0.8, erm: seed=0",
        "gamma_train=0.8, constrained: alpha=0.2",
        "gamma_train=0.8, erm: seed=1",
    ]


def test_a_cells_recipe_is_that_of_its_place(tmp_path):
    sweep = sweep_of(tmp_path, settings={"noise.gamma_train": [0.8]}, arms=TWO)
    first, second, *_ = rest(queue_of(studies_of(sweep)))
    assert first.recipe.identity() == sweep.recipe(sweep.settings[0], "constrained", {"descent.alpha": 0.1}).identity()
    assert second.recipe.settings.objective == "erm"
    assert second.recipe.settings.noise.gamma_train == 0.8


def test_arms_that_are_listed_and_arms_that_are_drawn_take_turns(tmp_path):
    sweep = sweep_of(tmp_path, arms={"drawn": drawn("tpe", 3, ALPHA), "erm": seeds(3, fixed={"objective": "erm"})})
    arms = [cell.study.arm for cell in rest(queue_of(studies_of(sweep)))]
    for turn in range(0, 6, 2):
        assert set(arms[turn : turn + 2]) == {"drawn", "erm"}


def test_a_resumed_sweep_spends_equally(tmp_path):
    arms = {"one": drawn("random", 4, ALPHA), "two": drawn("random", 4, ALPHA)}
    sweep, storage = sweep_of(tmp_path, arms=arms), open_storage(None)
    one, _ = studies_of(sweep, storage)
    for _ in range(2):
        trial = one.next()
        assert trial is not None
        one.finish(trial.number, 0.5, {})
    arms_begun = [cell.study.arm for cell in rest(queue_of(studies_of(sweep, storage)))]
    assert arms_begun[:2] == ["two", "two"]
    assert sorted(arms_begun) == ["one"] * 2 + ["two"] * 4


def test_a_cell_that_is_given_back_goes_first(tmp_path):
    queue = queue_of(studies_of(sweep_of(tmp_path, arms=TWO)))
    first, second = queue.next(), queue.next()
    assert first is not None
    assert second is not None
    queue.give_back(first)
    queue.give_back(second)
    assert [queue.next(), queue.next()] == [first, second]
    assert len(rest(queue)) == 2


def test_nothing_comes_from_a_queue_that_is_closed(tmp_path):
    queue = queue_of(studies_of(sweep_of(tmp_path, arms=TWO)))
    cell = queue.next()
    assert cell is not None
    queue.close()
    queue.give_back(cell)
    assert queue.next() is None


def test_settings_that_do_not_fit_together_fail_with_the_recipes_error_and_the_rest_runs(tmp_path):
    # Each fits with the first of the other; 0.5 belongs to nupi alone. A grid of these is refused at once.
    searched = {"descent.dual.optimizer": ["nupi", "adam"], "descent.dual.smoothing": [None, 0.5]}
    (study,) = studies = studies_of(sweep_of(tmp_path, arms={"constrained": drawn("random", 4, searched)}))
    refused: list[tuple[str, str]] = []
    cells = rest(Queue(studies, on_refused=lambda name, reason: refused.append((name, reason))))
    assert {tuple(cell.trial.parameters.values()) for cell in cells} == {("nupi", None), ("nupi", 0.5), ("adam", None)}
    (failed,) = [trial for trial in study.trials() if trial.state == "failed"]
    assert tuple(failed.parameters.values()) == ("adam", 0.5)
    assert "proportional_gain and smoothing have no effect with optimizer" in failed.facts["reason"]
    assert refused == [("constrained: dual.optimizer=adam, smoothing=0.5", failed.facts["reason"])]


def test_a_queue_that_is_closed_over_a_refusal_begins_no_other(tmp_path):
    searched = {"descent.dual.optimizer": ["nupi", "adam"], "descent.dual.smoothing": [None, 0.5]}
    (study,) = studies = studies_of(sweep_of(tmp_path, arms={"constrained": drawn("random", 4, searched)}))
    queue = Queue(studies, on_refused=lambda name, reason: queue.close())
    rest(queue)
    states = [trial.state for trial in study.trials()]
    assert states[-1] == "failed"
