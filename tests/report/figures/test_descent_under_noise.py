from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudt.report.figures import descent_under_noise
from tests.report import make_run, plant_constraints, plant_descent
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def numbers(kept: float, best_layer: float, best_loss: float) -> dict[str, float]:
    return {"kept": kept, "best_layer": best_layer, "best_loss": best_loss, "gap": 0.4}


def test_each_panel_shows_a_number_of_descent_csv_against_the_level(trained_run, tmp_path):
    for seed in range(2):
        run = make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, seed=seed, feasible=True)
        plant_descent(run, {0.0: numbers(3, 3, 0.2), 1.0: numbers(1 - seed, 2 - seed, 0.6)})
    figure, title = descent_under_noise.draw(groups_of(tmp_path), "gaussian")
    kept, best, lowest, gap = figure.axes
    name = "constrained (2 seeds)"
    wanted = {kept: [[0, 3], [1, 0.5]], lowest: [[0, 0.2], [1, 0.6]], gap: [[0, 0.4], [1, 0.4]]}
    for axes, points in wanted.items():
        assert np.allclose(points_of(named_lines(axes)[name]), points)
    # Layers are whole numbers: the lower of two, and the range of both.
    assert np.allclose(points_of(named_lines(best)[name]), [[0, 3], [1, 1]])
    band = best.collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} == {(0.0, 3.0), (1.0, 1.0), (1.0, 2.0)}
    assert legend_of(figure) == [name]
    assert title == "reviews-ut: constraints and best layer under gaussian noise, 2 seeds"


@pytest.mark.parametrize(("form", "kept"), [("linear", 1), ("ladder", 2)])
def test_every_objective_is_judged_by_the_constraints_of_the_constrained_runs(
    form, kept, trained_run, tmp_path
):
    for objective, alpha in (("constrained", 0.3), ("erm", 0.0)):
        facts: dict[str, Any] = {"objective": objective, "rates": [alpha] * 3, "reference": 1.0}
        overrides = [f"descent.alpha={alpha}", f"descent.form={form}"]
        run = make_run(trained_run, tmp_path, {1.0: 0.8}, overrides=overrides, **facts)
        plant_descent(run, {1.0: numbers(kept if alpha else 3, 3, 0.2)})
        # The ladder allows 0.7, 0.49 and 0.343; the linear form 0.7, 0.35 and 0.336.
        plant_constraints(run, {1.0: (0.5, 0.48, 0.45)})
    figure, _ = descent_under_noise.draw(groups_of(tmp_path), "gaussian")
    drawn = named_lines(figure.axes[0]).values()
    assert [np.array(points_of(line)).tolist() for line in drawn] == [[[1, kept]]] * 2


@pytest.mark.parametrize("has_rows", [True, False])
def test_runs_without_a_summary_of_their_constraints_have_no_such_figure(
    has_rows, trained_run, tmp_path
):
    run = make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8})
    if has_rows:
        plant_descent(run, {0.0: numbers(3, 3, 0.2)})
    plans = list(descent_under_noise.FIGURE.of_recipe(groups_of(tmp_path)))
    assert bool(plans) is has_rows
