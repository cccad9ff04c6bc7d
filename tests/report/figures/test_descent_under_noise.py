from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudt.report.figures import descent_under_noise
from tests.report import make_run, plant_constraints, plant_descent
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def test_each_panel_shows_a_number_of_descent_csv_against_the_level(trained_run, tmp_path):
    for seed in range(2):
        run = make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, seed=seed)
        plant_descent(run, {0.0: {"kept": 3, "best_layer": 3, "gap": 0, "bound": 1}})
        plant_descent(run, {1.0: {"kept": 1 - seed, "best_layer": 2 - seed, "gap": 0.4, "bound": 4 + 2 * seed}})
    figure, title = descent_under_noise.draw(groups_of(tmp_path), "gaussian")
    kept, best, gap = figure.axes
    wanted = ([[0, 3], [1, 0.5]], [[0, 3], [1, 1]], [[0, 0], [1, 0.4]])
    for axes, points in zip((kept, best, gap), wanted, strict=True):
        (line,) = named_lines(axes).values()
        assert np.allclose(points_of(line), points)
    # Layers are whole numbers: the lower of two, and the range of both.
    band = best.collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} == {(0.0, 3.0), (1.0, 1.0), (1.0, 2.0)}
    bound = next(line for line in gap.lines if line not in named_lines(gap).values())
    assert np.allclose(points_of(bound), [[0, 1], [1, 5]])
    assert legend_of(figure) == ["constrained (2 seeds)"]
    assert title == "reviews-ut: constraints and best layer under gaussian noise, 2 seeds"


@pytest.mark.parametrize(("form", "kept"), [("linear", 1), ("ladder", 2)])
def test_every_objective_is_judged_by_the_constraints_of_the_constrained_runs(form, kept, trained_run, tmp_path):
    for objective, alpha in (("constrained", 0.3), ("erm", 0.0)):
        facts: dict[str, Any] = {"objective": objective, "rates": [alpha] * 3, "reference": 1.0}
        overrides = [f"descent.alpha={alpha}", f"descent.form={form}"]
        run = make_run(trained_run, tmp_path, {1.0: 0.8}, overrides=overrides, **facts)
        plant_descent(run, {1.0: {"kept": kept if alpha else 3, "best_layer": 3, "gap": 0, "bound": 1}})
        # The ladder allows 0.7, 0.49 and 0.343; the linear form 0.7, 0.35 and 0.336.
        plant_constraints(run, {1.0: (0.5, 0.48, 0.45)})
    figure, _ = descent_under_noise.draw(groups_of(tmp_path), "gaussian")
    drawn = named_lines(figure.axes[0]).values()
    assert [np.array(points_of(line)).tolist() for line in drawn] == [[[1, kept]]] * 2


def test_a_bound_that_is_infinite_is_not_drawn(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, {0.0: 1.0})
    plant_descent(run, {0.0: {"kept": 3, "best_layer": 3, "gap": 0, "bound": float("inf")}})
    figure, _ = descent_under_noise.draw(groups_of(tmp_path), "gaussian")
    assert figure.axes[2].get_ylim()[1] < float("inf")


def test_no_tick_is_next_to_0(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, reference=5e7)
    for level, bound in ((0.0, 1e6), (1.0, 3e7)):
        plant_descent(run, {level: {"kept": 3, "best_layer": 3, "gap": 0, "bound": bound}})
    figure, _ = descent_under_noise.draw(groups_of(tmp_path), "gaussian")
    axes = figure.axes[2]
    low, high = axes.get_ylim()
    heights = [axes.transData.transform((0, tick))[1] for tick in axes.get_yticks() if low <= tick <= high]
    assert len(heights) > 1
    assert np.diff(heights).min() > 0.05 * axes.bbox.height


@pytest.mark.parametrize("has_rows", [True, False])
def test_runs_of_earlier_versions_have_no_such_figure(has_rows, trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8})
    if has_rows:
        plant_descent(run, {0.0: {"kept": 3, "best_layer": 3, "gap": 0, "bound": 1}})
    plans = list(descent_under_noise.FIGURE.of_recipe(groups_of(tmp_path)))
    assert bool(plans) is has_rows
