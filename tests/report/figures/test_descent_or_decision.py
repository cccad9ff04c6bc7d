from __future__ import annotations

import pytest

from cudt.report.comparable import constraint_kind
from cudt.report.figures import descent_or_decision
from cudt.report.figures.words import kind_looks
from tests.report.figures import groups_of, legend_of, named_lines, points_of
from tests.report.test_decision import make_layers, make_six


def test_each_run_is_a_point_in_both_rows(trained_run, tmp_path):
    make_six(trained_run, tmp_path)
    make_layers(trained_run, tmp_path, [0.5, 0.9, 0.9], 0.7)
    make_layers(trained_run, tmp_path, [0.5, 0.9, 0.9], 0.75, overrides=["descent.form=ladder"])
    make_layers(trained_run, tmp_path, [0.5, 0.5, 0.5], seed=9)
    (plan,) = descent_or_decision.FIGURE.over_recipes([groups_of(tmp_path)])
    figure, title = plan.draw()
    above, below = figure.axes
    assert plan.name == "descent-or-decision"
    assert legend_of(figure) == ["constrained", "constrained (ladder)", "erm", "supervised"]
    for axes, shares in ((above, [1 / 3, 2 / 3, 2 / 3]), (below, [1, 1, 1])):
        found = sorted(points_of(named_lines(axes)["supervised"]))
        # Objectives are drawn slightly aside.
        assert [x for x, _ in found] == pytest.approx(shares, abs=0.05)
        assert [y for _, y in found] == pytest.approx([0.8, 0.85, 0.86])
        assert "(8 runs)" in axes.texts[0].get_text()
    assert above.get_title() == "reviews-ut\nL = 3, γ_train = 0.4, gaussian"
    assert title.endswith("; 1 run is not shown: evaluated at other levels, or no better than chance at γ_train")


def test_few_runs_draw_nothing(trained_run, tmp_path):
    make_six(trained_run, tmp_path)
    groups = groups_of(tmp_path)
    assert list(descent_or_decision.FIGURE.over_recipes([groups[:1]])) == []


def test_many_cells_need_several_pages(trained_run, tmp_path):
    for number in range(5):
        for seed in range(6):
            make_layers(trained_run, tmp_path, [0.5, 0.9, 0.9], 0.6 + 0.01 * seed, seed=seed, name=f"recipe-{number}")
    plans = list(descent_or_decision.FIGURE.over_recipes([groups_of(tmp_path)]))
    assert [plan.name for plan in plans] == ["descent-or-decision-1", "descent-or-decision-2"]
    figure, title = plans[1].draw()
    assert len(figure.axes) == 2
    assert "(2 of 2)" in title
    # All runs decide at the same layer.
    assert "ρ = – (6 runs)" in figure.axes[0].texts[0].get_text()


def test_kinds_of_constraints_are_told_apart(trained_run, tmp_path):
    decoupled = ["descent.gradient=proxy", "descent.resilience=decay", "descent.beta=1", "descent.decay=decoupled"]
    for overrides in ([], ["descent.form=ladder"], decoupled):
        make_layers(trained_run, tmp_path, [0.5, 0.9, 0.9], overrides=overrides)
        make_layers(trained_run, tmp_path, [0.5, 0.9, 0.9], overrides=overrides, objective="supervised")
    runs = [run for group in groups_of(tmp_path) for run in group.runs]
    assert {constraint_kind(run) for run in runs if run.objective == "constrained"} == {
        *("", "ladder", "proxy, decoupled"),
    }
    looks = kind_looks(runs)
    labels = [label for label, _ in looks.values()]
    assert labels == ["constrained", "constrained (ladder)", "constrained (proxy, decoupled)", "supervised"]
    assert len({(style["color"], style["marker"]) for _, style in looks.values()}) == 4
    assert len({style["marker"] for _, style in looks.values()}) == 4
