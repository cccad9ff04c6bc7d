from __future__ import annotations

from cudt.report.collect import collect
from cudt.report.figures import infeasible_runs
from tests.report import make_run
from tests.report.figures import named_lines, points_of


def verdict(layer: int, word: str, loss: float = 1.0, allowed: float = 0.9) -> dict[str, object]:
    numbers = {"loss": loss, "allowed": allowed, "violation": loss - allowed, "standard_error": 0.01, "slack": 0.0}
    return {"layer": layer, **numbers, "verdict": word}


def test_the_losses_of_an_infeasible_run_are_shown_against_their_limits(trained_run, tmp_path):
    few = [verdict(1, "met", 0.5, 0.6), verdict(2, "violated"), verdict(3, "met", 0.7, 0.8)]
    many = [verdict(1, "violated", 1.3, 1.0), verdict(2, "relaxed", 1.2, 1.1), verdict(3, "violated", 1.4, 1.0)]
    make_run(trained_run, tmp_path, seed=0, feasible=False, verdicts=few)
    make_run(trained_run, tmp_path, seed=1, feasible=False, verdicts=many)
    make_run(trained_run, tmp_path, seed=2, feasible=True, verdicts=many)
    make_run(trained_run, tmp_path, objective="erm", feasible=False, verdicts=many)
    make_run(trained_run, tmp_path, name="other", feasible=False, verdicts=few)
    worst = infeasible_runs.most_violated(collect([tmp_path]).runs)
    assert [(run.recipe, run.seed) for run in worst] == [("reviews-ut", 1), ("other", 0)]
    figure, _ = infeasible_runs.draw(worst)
    first, second = figure.axes
    assert points_of(named_lines(first)["validation loss"]) == [[1, 1.3], [2, 1.2], [3, 1.4]]
    assert points_of(first.containers[0][0]) == [[1, 1.0], [2, 1.1], [3, 1.0]]
    marks = {mark.get_label(): mark.get_offsets().tolist() for mark in first.collections if mark.get_label()[0] != "_"}
    assert marks == {"violated": [[1, 1.3], [3, 1.4]], "relaxed": [[2, 1.2]]}
    assert first.get_title() == "reviews-ut, seed 1\nfails at all 3 layers"
    assert second.get_title() == "other, seed 0\nfails at layer 2 of 3"


def test_at_most_six_infeasible_runs_are_shown(trained_run, tmp_path):
    for index in range(8):
        verdicts = [verdict(layer, "violated") for layer in range(1, index + 2)]
        make_run(trained_run, tmp_path, name=f"recipe-{index}", feasible=False, verdicts=verdicts)
    worst = infeasible_runs.most_violated(collect([tmp_path]).runs)
    assert [run.recipe for run in worst] == [f"recipe-{index}" for index in range(7, 1, -1)]
